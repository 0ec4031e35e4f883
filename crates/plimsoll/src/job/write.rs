//! Writing values as TOML that people read: one line a key, tables inline with their name first, and behind each value
//! where it came from.

use toml::Value;

/// `value` on one line. Floats keep their short form (`1e-30`), which the `toml` crate would write out in zeros.
pub fn inline(value: &Value) -> String {
    match value {
        Value::Float(x) => float(*x),
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Table(table) => {
            let named = table.get_key_value("name").into_iter();
            let others = table.iter().filter(|(key, _)| *key != "name");
            let pairs: Vec<String> =
                named.chain(others).map(|(key, value)| format!("{key} = {}", inline(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        plain => plain.to_string(),
    }
}

fn float(x: f64) -> String {
    // Debug has the shortest digits that read back as the same number, and always a point or an exponent.
    match x {
        x if x.is_nan() => "nan".to_string(),
        x if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.to_string(),
        x => format!("{x:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_reads_back_as_itself() {
        let text = r#"v = { name = "a \"b\"\\c", eps = [1e-30, 0.001], n = 1.0, big = 1e300, third = 0.3333333333333333, on = true, deep = { x = [1, 2] } }"#;
        let value = toml::from_str::<toml::Table>(text).unwrap().remove("v").unwrap();
        let written = format!("v = {}", inline(&value));
        assert_eq!(toml::from_str::<toml::Table>(&written).unwrap()["v"], value, "{written}");
        assert!(written.starts_with(r#"v = { name = "#) || written.starts_with("v = { name = '"), "{written}");
        assert!(written.contains("1e-30"), "{written}");
    }
}
