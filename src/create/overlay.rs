//! A Modelfile's words as layers over those that a model has.

use super::json;
use crate::fault::{Code, Fault};
use crate::modelfile::{Modelfile, Parameters};
use crate::store::{Layer, Writer, media};

/// Lays what a Modelfile says over what is there: one template, one system text, one list of
/// messages; parameters are merged; licences are added.
pub(super) fn overlay(
    layers: &mut Vec<Layer>,
    modelfile: &Modelfile,
    writer: &Writer,
) -> Result<(), Fault> {
    let template = modelfile.template.as_ref().map(|template| &template.value);
    let texts = [(media::TEMPLATE, template), (media::SYSTEM, modelfile.system.as_ref())];
    for (media_type, text) in texts {
        if let Some(text) = text {
            replace(layers, writer.add(text.as_bytes())?.layer(media_type, None));
        }
    }
    for license in &modelfile.licenses {
        let layer = writer.add(license.as_bytes())?.layer(media::LICENSE, None);
        if !layers.contains(&layer) {
            layers.push(layer);
        }
    }
    if !modelfile.parameters.is_empty() {
        let mut parameters = Parameters::new();
        for layer in layers.iter().filter(|layer| layer.media_type == media::PARAMS) {
            let bytes = writer.store().read_blob(layer)?;
            let inherited: Parameters = serde_json::from_slice(&bytes).map_err(|error| {
                Fault::new(Code::CorruptBlob, format!("parameters of the base model: {error}"))
            })?;
            parameters.extend(inherited);
        }
        parameters.extend(modelfile.parameters.clone());
        replace(layers, writer.add(&json(&parameters)?)?.layer(media::PARAMS, None));
    }
    if !modelfile.messages.is_empty() {
        replace(layers, writer.add(&json(&modelfile.messages)?)?.layer(media::MESSAGES, None));
    }
    Ok(())
}

/// Puts a layer in the place of all others of its type and name, or at the end.
pub(crate) fn replace(layers: &mut Vec<Layer>, layer: Layer) {
    let same = |other: &Layer| (&other.media_type, &other.name) == (&layer.media_type, &layer.name);
    let at = layers.iter().position(same).unwrap_or(layers.len());
    layers.retain(|other| !same(other));
    layers.insert(at, layer);
}
