//! What is wrong with a recipe and a request, as far as that can be said before a model is read.

use super::{From, Recipe};
use crate::chat;
use crate::checkpoint::ChatTemplate;
use crate::fault::{Code, Fault, Faults};
use crate::modelfile::{Modelfile, Spanned};
use crate::plan::Request;
use crate::policy::{Library, parsers};
use crate::{format, read};

/// What can be said about a request before anything is read.
pub(super) fn check_request(recipe: &Recipe, request: &Request) -> Result<(), Faults> {
    let mut faults = Faults::default();
    for given in [&request.format, &request.draft_format].into_iter().flatten() {
        if !given.eq_ignore_ascii_case(format::SOURCE)
            && let Err(fault) = format::Formats::built_in().resolve(given)
        {
            faults.push(fault);
        }
    }
    if request.draft_format.is_some() && recipe.draft.is_none() {
        faults.push(
            Fault::new(Code::Usage, "a format for the draft was given, but there is no draft")
                .help("name one with DRAFT in the Modelfile or --draft, or leave --quantize-draft away"),
        );
    }
    if request.format.is_some()
        && let From::Model(name) = &recipe.from
    {
        faults.push(
            Fault::new(Code::Usage, format!("{name} is in the store already, with its formats"))
                .help("to quantize otherwise, give the folder that it was made from"),
        );
    }
    faults.or(())
}

/// What can be said about a conversation with the model before anything is planned: that its chat
/// templates are Jinja, and that the Modelfile names parsers and renderers that there are.
pub(super) fn check_words(recipe: &Recipe, library: &Library) -> Result<(), Faults> {
    let Modelfile { parser, renderer, template, .. } = &recipe.modelfile;
    let mut faults = Faults::default();
    let dirs = library.dirs();
    let checked = [
        parser.as_ref().map(|given| (given, parsers::check_parser(&given.value, &dirs))),
        renderer.as_ref().map(|given| (given, parsers::check_renderer(&given.value))),
    ];
    for (given, checked) in checked.into_iter().flatten() {
        if let Err(fault) = checked {
            faults.push(in_modelfile(recipe, given, fault));
        }
    }
    match (template, &recipe.from) {
        (Some(given), _) if chat::is_go(&given.value) => {}
        (Some(given), _) => {
            if let Err(fault) = chat::Template::compile("TEMPLATE", &given.value) {
                let fault = in_modelfile(recipe, given, fault);
                faults.push(fault.help("mend it, or leave it out: the model's own is taken then"));
            }
        }
        (None, From::Folder(dir)) if dir.is_dir() => {
            // What cannot be read is told when the folder is.
            for ChatTemplate { name, text } in read::chat_templates(dir).unwrap_or_default() {
                if let Err(fault) = chat::Template::compile(&name, &text) {
                    let help = "mend it, or give the model another TEMPLATE in a Modelfile";
                    faults.push(fault.help(help));
                }
            }
        }
        (None, _) => {}
    }
    faults.or(())
}

/// A fault of a value of the Modelfile, at its place there: at the line, where it points into the
/// value.
fn in_modelfile(recipe: &Recipe, given: &Spanned, fault: Fault) -> Fault {
    let Some(modelfile) = &recipe.text else { return fault };
    let Some(place) = &fault.place else { return fault.at(modelfile, given.span.clone()) };
    let (line, column) = place.text.line_column(place.span.start);
    let (first, _) = modelfile.line_column(given.span.start);
    let start = modelfile.offset(first + line - 1, 1);
    let whole = modelfile.body[start..].lines().next().unwrap_or_default();
    // They differ in their line ends alone.
    let own = place.text.body.lines().nth(line - 1).unwrap_or_default();
    let span = match whole.find(own.trim_end()) {
        Some(at) if !own.trim().is_empty() => {
            let from = start + at + place.text.offset(line, column) - place.text.offset(line, 1);
            from..(from + place.span.len()).min(start + whole.len())
        }
        _ => start..start + whole.len(),
    };
    fault.at(modelfile, span)
}
