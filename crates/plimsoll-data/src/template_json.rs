//! The filter `tojson` as Hugging Face's templates expect it: Python's `json.dumps`, no HTML escapes.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// `value | tojson(indent=4)`. `ensure_ascii` is not known, since it is off there too.
pub(crate) fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = kwargs.get::<Option<usize>>("indent")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(value, indent, 0, &mut out)?;
    Ok(out)
}

fn write(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> Result<(), Error> {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let comma = |out: &mut String, first: bool| match (first, indent) {
        (true, _) => {}
        (false, None) => out.push_str(", "),
        (false, Some(_)) => out.push(','),
    };
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => push_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut first = true;
            for item in value.try_iter()? {
                comma(out, first);
                line(out, depth + 1);
                write(&item, indent, depth + 1, out)?;
                first = false;
            }
            if !first {
                line(out, depth);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            let mut first = true;
            for key in value.try_iter()? {
                comma(out, first);
                line(out, depth + 1);
                push_text(&key.to_string(), out);
                out.push_str(": ");
                write(&value.get_item(&key)?, indent, depth + 1, out)?;
                first = false;
            }
            if !first {
                line(out, depth);
            }
            out.push('}');
        }
        kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} cannot be written as JSON"))),
    }
    Ok(())
}

fn push_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(template: &str) -> String {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", tojson);
        environment.render_str(template, ()).unwrap()
    }

    #[test]
    fn json_is_python_s() {
        assert_eq!(
            dump("{{ {'a': [1, 2.5, true, none], 'b': '<é\\n>'} | tojson }}"),
            r#"{"a": [1, 2.5, true, null], "b": "<é\n>"}"#
        );
        assert_eq!(dump("{{ {'a': [1], 'b': []} | tojson(indent=2) }}"), "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}");
    }
}
