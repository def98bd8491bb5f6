//! What linting found as SARIF 2.1.0 (OASIS), which code-review tools show beside the lines.

use super::{Finding, Lint};
use crate::fault::{Fault, Faults};

/// Findings, and the faults that kept files from being linted, which are results too.
pub fn sarif(findings: &[Finding], faults: &Faults) -> serde_json::Value {
    let mut rules: Vec<_> = Lint::ALL
        .iter()
        .map(|lint| {
            serde_json::json!({
                "id": lint.code(),
                "shortDescription": {"text": lint.meaning()},
                "defaultConfiguration": {"level": lint.severity()},
            })
        })
        .collect();
    let codes: std::collections::BTreeSet<&str> =
        faults.0.iter().map(|fault| fault.code.as_str()).collect();
    let of_fault = |code: &&str| {
        serde_json::json!({
            "id": code,
            "shortDescription": {"text": "the file cannot be read as a policy"},
            "defaultConfiguration": {"level": "error"},
        })
    };
    rules.extend(codes.iter().map(of_fault));
    let mut results: Vec<_> = findings
        .iter()
        .map(|finding| {
            let (line, column) = finding.position();
            let (end_line, end_column) = finding.place.text.line_column(finding.place.span.end);
            serde_json::json!({
                "ruleId": finding.lint.code(),
                "level": finding.lint.severity(),
                "message": {"text": format!("{}; {}", finding.message, finding.help)},
                "locations": [{"physicalLocation": {
                    "artifactLocation": {"uri": finding.place.text.name},
                    "region": {"startLine": line, "startColumn": column,
                               "endLine": end_line, "endColumn": end_column},
                }}],
            })
        })
        .collect();
    results.extend(faults.0.iter().map(result_of_fault));
    serde_json::json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "lathe", "version": env!("CARGO_PKG_VERSION"), "rules": rules,
            }},
            "results": results,
        }],
    })
}

fn result_of_fault(fault: &Fault) -> serde_json::Value {
    let help = fault.help.as_deref().map_or(String::new(), |help| format!("; {help}"));
    let mut physical = serde_json::Map::new();
    if let Some(place) = &fault.place {
        let (line, column) = place.text.line_column(place.span.start);
        physical.insert("artifactLocation".into(), serde_json::json!({"uri": place.text.name}));
        let region = serde_json::json!({"startLine": line, "startColumn": column});
        physical.insert("region".into(), region);
    } else if let Some(file) = &fault.file {
        let uri = file.display().to_string();
        physical.insert("artifactLocation".into(), serde_json::json!({"uri": uri}));
    }
    let mut result = serde_json::json!({
        "ruleId": fault.code,
        "level": "error",
        "message": {"text": format!("{fault}{help}")},
    });
    if !physical.is_empty() {
        result["locations"] = serde_json::json!([{"physicalLocation": physical}]);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sarif_names_every_rule() {
        let value = sarif(&[], &Faults::default());
        let rules = value["runs"][0]["tool"]["driver"]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), Lint::ALL.len());
    }
}
