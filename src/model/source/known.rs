//! Stored tensors as the policy knows them: under its names, and those of single experts as one.
//!
//! Stacked tensors are put together in memory when they are asked for; all others stay mapped.

use std::collections::{BTreeMap, HashMap};

use bytes::{Bytes, BytesMut};

use super::{QuantizedTensor, Tensor, TensorSource, Weight};
use crate::decoder::parts::TensorSpec;
use crate::fault::{Code, Fault, Faults};
use crate::policy::Policy;

/// A source whose tensors go by the names that a policy knows.
pub struct Known<S> {
    source: S,
    tensors: HashMap<String, Stored>,
}

/// Under which names of the source a tensor is stored.
enum Stored {
    Whole(String),
    /// Expert by expert, in their order.
    Experts(Vec<String>),
}

impl<S: TensorSource> Known<S> {
    /// Applies the policy's aliases and stack rules to all names.
    ///
    /// # Errors
    /// Two tensors that go by one name; experts whose numbers do not run from 0 without a gap.
    pub fn by(policy: &Policy, source: S) -> Result<Known<S>, Faults> {
        let mut faults = Faults::default();
        let mut tensors = HashMap::<String, Stored>::new();
        let mut experts = BTreeMap::<String, BTreeMap<u32, String>>::new();
        let mut stored = source.names();
        stored.sort();
        for name in stored {
            let known = policy.known_as(&name).into_owned();
            let single = policy.expert(&known);
            let single = single.and_then(|expert| Some((expert.stacked(), expert.number()?)));
            let twice = match single {
                Some((stacked, number)) => {
                    let members = experts.entry(stacked).or_default();
                    members.insert(number, name.clone()).is_some()
                }
                None => tensors.insert(known, Stored::Whole(name.clone())).is_some(),
            };
            if twice {
                let message = "the model has this tensor under two names";
                faults.push(Fault::new(Code::NameCollision, message).on_tensor(name));
            }
        }
        for (stacked, members) in experts {
            let numbers = 0..=members.keys().next_back().copied().unwrap_or(0);
            if let Some(missing) = numbers.into_iter().find(|n| !members.contains_key(n)) {
                let message = format!("its expert {missing} is missing");
                faults.push(Fault::new(Code::BadExperts, message).on_tensor(stacked));
                continue;
            }
            let members = Stored::Experts(members.into_values().collect());
            if tensors.insert(stacked.clone(), members).is_some() {
                let message = "the model has this tensor both whole and expert by expert";
                faults.push(Fault::new(Code::NameCollision, message).on_tensor(stacked));
            }
        }
        faults.or(Known { source, tensors })
    }
}

impl<S: TensorSource> TensorSource for Known<S> {
    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn tensor(&self, name: &str) -> Result<Option<Weight>, Fault> {
        let members = match self.tensors.get(name) {
            None => return Ok(None),
            Some(Stored::Whole(stored)) => return self.source.tensor(stored),
            Some(Stored::Experts(members)) => members,
        };
        let weights = members.iter().map(|stored| self.source.tensor(stored));
        let weights: Option<Vec<Weight>> = weights.collect::<Result<_, _>>()?;
        let Some(weights) = weights else { return Ok(None) };
        let stacked = stacked(&weights);
        stacked.map(Some).map_err(|why| Fault::new(Code::BadExperts, why).on_tensor(name))
    }

    /// Of single experts the first tells; that all are alike is seen when they are stacked.
    fn held(&self, name: &str) -> Result<Option<TensorSpec>, Fault> {
        match self.tensors.get(name) {
            None => Ok(None),
            Some(Stored::Whole(stored)) => self.source.held(stored),
            Some(Stored::Experts(members)) => {
                let Some(first) = members.first() else { return Ok(None) };
                let held = self.source.held(first)?;
                Ok(held.map(|mut held| {
                    held.shape.insert(0, members.len() as u64);
                    held
                }))
            }
        }
    }
}

/// Weights of single experts, all alike, as one.
fn stacked(experts: &[Weight]) -> Result<Weight, String> {
    let floats = |weight: &Weight| match weight {
        Weight::Float(tensor) => Some(tensor.clone()),
        Weight::Quantized(_) => None,
    };
    let packed = |weight: &Weight| match weight {
        Weight::Float(_) => None,
        Weight::Quantized(quantized) => Some(quantized.as_ref().clone()),
    };
    if let Some(tensors) = experts.iter().map(floats).collect::<Option<Vec<_>>>() {
        return stack(&tensors).map(Weight::Float);
    }
    let all = experts.iter().map(packed).collect::<Option<Vec<_>>>();
    let all = all.ok_or("some experts are quantized and others are not")?;
    let first = all.first().ok_or("there are no experts")?;
    if let Some(at) = all.iter().position(|one| one.packing != first.packing) {
        return Err(format!("expert {at} is in another format than the first"));
    }
    let part = |of: fn(&QuantizedTensor) -> Option<&Tensor>| {
        let there: Vec<Tensor> = all.iter().filter_map(of).cloned().collect();
        match there.len() {
            0 => Ok(None),
            count if count == all.len() => stack(&there).map(Some),
            _ => Err("some experts have a bias or global scale and others have none".to_string()),
        }
    };
    let needed = |tensor: Option<Tensor>| tensor.ok_or("there are no experts".to_string());
    let global_scale = part(|one| one.global_scale.as_ref())?;
    Ok(Weight::Quantized(Box::new(QuantizedTensor {
        weight: needed(part(|one| Some(&one.weight))?)?,
        scales: needed(part(|one| Some(&one.scales))?)?,
        biases: part(|one| one.biases.as_ref())?,
        // One number for each expert, whatever the shape of one number was.
        global_scale: global_scale.map(|all| Tensor { shape: vec![experts.len() as i32], ..all }),
        packing: first.packing,
    })))
}

/// Equal tensors on a new first axis.
fn stack(tensors: &[Tensor]) -> Result<Tensor, String> {
    let first = tensors.first().ok_or("there are no experts")?;
    let mut bytes = BytesMut::with_capacity(first.bytes.len() * tensors.len());
    for (at, tensor) in tensors.iter().enumerate() {
        if (tensor.dtype, &tensor.shape) != (first.dtype, &first.shape) {
            let [one, other] = [tensor, first].map(|t| format!("{} {:?}", t.dtype, t.shape));
            return Err(format!("expert {at} is {one} and the first {other}"));
        }
        bytes.extend_from_slice(&tensor.bytes);
    }
    let bytes: Bytes = bytes.freeze();
    let shape = std::iter::once(tensors.len() as i32).chain(first.shape.iter().copied()).collect();
    Ok(Tensor { dtype: first.dtype, shape, bytes })
}
