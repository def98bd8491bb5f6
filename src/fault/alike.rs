//! Faults that differ in nothing but the tensor: one wrong line of a config makes one for each
//! weight, and is one thing to mend.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Code, Fault, Faults};

/// Tensors of such a fault that are named before the rest is counted.
pub(super) const NAMED: usize = 3;

/// Code, message, help and place of a fault, without the tensor's name; and of a decoder's faults,
/// which differ by what they are of, that name without its numbers.
type Alike = (Code, String, Option<String>, Option<(String, usize)>, Option<String>);

impl Faults {
    /// The same faults, with those that differ only in the tensor made one, which names the
    /// tensors. A fault stands where the first of its kind stood.
    pub fn grouped(self) -> Faults {
        let mut places: HashMap<Alike, usize> = HashMap::new();
        let mut grouped: Vec<Fault> = Vec::new();
        for fault in self.0 {
            let Some(tensor) = &fault.tensor else {
                grouped.push(fault);
                continue;
            };
            let help = fault.help.as_deref().map(|help| without(tensor, help));
            let place = fault.place.as_ref();
            let place = place.map(|place| (place.text.name.clone(), place.span.start));
            let of =
                matches!(fault.code, Code::Decoder | Code::Ambiguous).then(|| numberless(tensor));
            let message = without(tensor, &fault.message);
            match places.entry((fault.code, message, help, place, of)) {
                Entry::Occupied(place) => {
                    let first = &mut grouped[*place.get()];
                    first.others.extend(fault.tensor.into_iter().chain(fault.others));
                }
                Entry::Vacant(place) => {
                    place.insert(grouped.len());
                    grouped.push(fault);
                }
            }
        }
        Faults(grouped)
    }
}

/// A name with its numbers left out.
fn numberless(tensor: &str) -> String {
    let part = |part: &str| part.parse::<u64>().map_or_else(|_| part.to_owned(), |_| "#".into());
    tensor.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// The words without the tensor's name, or the names of what it is a part of, as far as these tell
/// one layer from another.
fn without(tensor: &str, words: &str) -> String {
    let numbered = |name: &&str| name.split('.').any(|part| part.parse::<u64>().is_ok());
    let ends = tensor.rmatch_indices('.').map(|(end, _)| &tensor[..end]);
    let wholes = ends.filter(numbered);
    std::iter::once(tensor)
        .chain(wholes)
        .enumerate()
        .fold(words.to_string(), |words, (depth, name)| words.replace(name, &format!("\0{depth}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(layer: usize, message: impl Into<String>) -> Fault {
        Fault::new(Code::BadScale, message)
            .in_file(format!("model-{layer}.safetensors"))
            .on_tensor(format!("model.layers.{layer}.mlp.down_proj.weight_scale"))
            .help("layout fp8-block: made for it")
    }

    #[test]
    fn what_differs_only_in_the_tensor_is_one_fault_that_names_the_first_few() {
        let mut faults = Faults::default();
        for layer in 0..30 {
            faults.push(scale(layer, "has shape [2, 3], not [1, 3]"));
            if layer == 0 {
                faults.push(Fault::new(Code::BadConfig, "another thing"));
            }
        }
        let grouped = faults.grouped();
        assert_eq!(grouped.0.len(), 2, "{grouped}");
        assert_eq!(grouped.0[0].others.len(), 29);
        assert_eq!(
            grouped.0[0].to_string(),
            "model-0.safetensors: model.layers.0.mlp.down_proj.weight_scale: has shape [2, 3], not \
             [1, 3]; the same of 29 other tensors: model.layers.1.mlp.down_proj.weight_scale, \
             model.layers.2.mlp.down_proj.weight_scale, \
             model.layers.3.mlp.down_proj.weight_scale and 26 more"
        );
        assert_eq!(grouped.0[1].to_string(), "another thing");
    }

    #[test]
    fn names_inside_the_words_are_passed_over_and_other_words_are_not() {
        let faults = Faults(vec![
            scale(0, "both in model.layers.0.mlp and elsewhere"),
            scale(1, "both in model.layers.1.mlp and elsewhere"),
            scale(2, "both in model.layers.1.mlp and elsewhere"),
            scale(3, "is 0"),
            scale(3, "is 1").help("other help"),
            scale(4, "is 1"),
        ]);
        let others: Vec<usize> =
            faults.grouped().0.iter().map(|fault| fault.others.len()).collect();
        assert_eq!(others, [1, 0, 0, 0, 0]);
    }

    #[test]
    fn faults_without_a_tensor_stay_apart() {
        let twice = || Fault::new(Code::Io, "cannot read");
        assert_eq!(Faults(vec![twice(), twice()]).grouped().0.len(), 2);
    }
}
