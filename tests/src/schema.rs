//! What `spec/report.schema.json` says of reports, in the words of JSON Schema that it uses.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// Whether a report is of its kind.
///
/// # Panics
/// If it is not, naming where.
pub fn check(kind: &str, report: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("spec/report.schema.json");
    let text = fs::read_to_string(path).expect("the schema");
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    fits(report, &schema["$defs"][kind], kind);
}

fn fits(value: &Value, schema: &Value, at: &str) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = |word: &Value| word == kind || (word == "number" && kind == "integer");
    let types = &schema["type"];
    let good = types.as_array().map_or_else(|| allowed(types), |types| types.iter().any(allowed));
    assert!(good, "{at} is {kind}, not {types}");
    if let Value::Array(items) = value {
        items.iter().for_each(|item| fits(item, &schema["items"], &format!("{at}[]")));
    }
    if let Value::Object(fields) = value {
        let more = Some(&schema["additionalProperties"]).filter(|more| more.is_object());
        for (name, field) in fields {
            let known = schema["properties"].get(name).or(more);
            let known = known.unwrap_or_else(|| panic!("{at}.{name} is not in the schema"));
            fits(field, known, &format!("{at}.{name}"));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(fields.contains_key(name.as_str().unwrap_or_default()), "{at}: {name}");
        }
    }
}
