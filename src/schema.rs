//! JSON Schemas of every file that people write or scripts read, generated from the types that
//! read them. `schemas/` holds a copy for editors; a test fails when it is stale.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

/// A schema's name (`policy` is `schemas/policy.schema.json`) and how it is generated.
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// What the file is.
    pub about: &'static str,
    generate: fn() -> Schema,
}

/// Every schema.
pub const ALL: &[Named] = &[
    named::<crate::policy::file::PolicyFile>("policy", "a policy of an architecture"),
    named::<crate::format::FormatsFile>("formats", "the table of formats"),
    named::<crate::policy::parsers::Answers>("parser", "a parser of answers"),
    named::<crate::policy_test::TestFile>("policy-test", "tests of a policy"),
    named::<crate::plan::Plan>("plan", "a printed plan"),
    named::<crate::classify::file::SourceFile>("source", "a producer's layout"),
    named::<crate::classify::file::ClaimsFile>("claims", "where configs claim what is quantized"),
    named::<crate::classify::file::QuantizersFile>(
        "quantizers",
        "which programs that quantize lathe reads, and which it names and refuses",
    ),
    named::<crate::read::Described>("inventory", "an inventory file"),
    named::<crate::draft::controller::scenario::ScenarioFile>(
        "scenarios",
        "scenarios for the controller of drafting depths",
    ),
];

const fn named<T: JsonSchema>(name: &'static str, about: &'static str) -> Named {
    Named { name, about, generate: schema::<T> }
}

fn schema<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>()
}

impl Named {
    /// The file's name in `schemas/`.
    pub fn file(&self) -> String {
        format!("{}.schema.json", self.name)
    }

    /// The schema as text, ending in a newline.
    pub fn text(&self) -> String {
        let schema = (self.generate)();
        serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
    }
}

/// A schema by name.
pub fn get(name: &str) -> Option<&'static Named> {
    ALL.iter().find(|named| named.name == name)
}
