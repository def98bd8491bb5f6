//! A [`Modelfile`] as text that reads back as the same.

use std::fmt;

use super::{Modelfile, Spanned, Value};

impl fmt::Display for Modelfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FROM {}", quoted(&self.from.value))?;
        let value = |spanned: &'_ Option<Spanned>| spanned.as_ref().map(Spanned::text);
        let singles = [
            ("DRAFT", value(&self.draft)),
            ("TEMPLATE", value(&self.template)),
            ("SYSTEM", self.system.clone()),
            ("PARSER", value(&self.parser)),
            ("RENDERER", value(&self.renderer)),
            ("REQUIRES", self.requires.clone()),
        ];
        for (command, value) in singles {
            if let Some(value) = value {
                writeln!(f, "{command} {}", quoted(&value))?;
            }
        }
        for (name, value) in &self.parameters {
            match value {
                Value::Bool(value) => writeln!(f, "PARAMETER {name} {value}")?,
                Value::Int(value) => writeln!(f, "PARAMETER {name} {value}")?,
                Value::Float(value) => writeln!(f, "PARAMETER {name} {value}")?,
                Value::Texts(values) => {
                    for value in values {
                        writeln!(f, "PARAMETER {name} {}", quoted(value))?;
                    }
                }
            }
        }
        for message in &self.messages {
            writeln!(f, "MESSAGE {} {}", message.role.as_str(), quoted(&message.content))?;
        }
        for license in &self.licenses {
            writeln!(f, "LICENSE {}", quoted(license))?;
        }
        Ok(())
    }
}

/// The value with quotes around it, when it would not read back without. No value that can be
/// written holds `"""` at the end of a line; such a one is cut there when it is read.
fn quoted(value: &str) -> String {
    let plain = !value.is_empty()
        && value.trim() == value
        && !value.contains(['\n', '\r'])
        && !value.starts_with('"');
    if plain {
        return value.to_string();
    }
    // One quote is enough, unless a quote inside ends a line or would make three at the start.
    let ends_line = value.lines().any(|line| line.trim_end().ends_with('"'));
    if ends_line || value.starts_with("\"\"") {
        format!("\"\"\"{value}\"\"\"")
    } else {
        format!("\"{value}\"")
    }
}
