//! A YAML emitter for the two objects: block style, keys sorted, as kubectl writes them. JSON values are all that it
//! knows, so there is little of YAML to get wrong.

use serde::Serialize;
use serde_json::Value;

/// Documents one after another, separated by `---`. Empty maps and lists stay inline.
pub fn documents<'a>(values: impl IntoIterator<Item = &'a Value>) -> String {
    let documents: Vec<_> = values.into_iter().map(document).collect();
    documents.join("---\n")
}

/// An object as a YAML document.
pub fn object(object: &impl Serialize) -> String {
    serde_json::to_value(object)
        .map(|value| document(&value))
        .expect("objects have string keys and no numbers that JSON lacks")
}

fn document(value: &Value) -> String {
    let mut text = String::new();
    match inline(value) {
        Some(scalar) => text = scalar + "\n",
        None => block(&mut text, value, 0),
    }
    text
}

/// Writes a filled map or list, each line indented by `indent`.
fn block(text: &mut String, value: &Value, indent: usize) {
    let padding = " ".repeat(indent);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                text.push_str(&padding);
                text.push_str(&scalar(key));
                text.push(':');
                if let Some(scalar) = inline(value) {
                    text.push(' ');
                    text.push_str(&scalar);
                    text.push('\n');
                } else {
                    text.push('\n');
                    // Lists stand at their key's own indentation.
                    let inner = if value.is_array() { indent } else { indent + 2 };
                    block(text, value, inner);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                match inline(item) {
                    Some(scalar) => inner = format!("{padding}  {scalar}\n"),
                    None => block(&mut inner, item, indent + 2),
                }
                // The item's first line carries the dash in place of its indentation.
                inner.replace_range(indent..=indent, "-");
                text.push_str(&inner);
            }
        }
        _ => {}
    }
}

/// A value that fits on its key's line.
fn inline(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("null".into()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => Some(value.to_string()),
        Value::String(value) => Some(scalar(value)),
        Value::Array(items) => items.is_empty().then(|| "[]".into()),
        Value::Object(map) => map.is_empty().then(|| "{}".into()),
    }
}

/// A string: plain where no YAML reader could take it for something else, else in JSON's quotes, which YAML shares.
fn scalar(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    let starts_with_letter = text
        .chars()
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic());
    let reserved = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    if starts_with_letter
        && text.chars().all(plain)
        && !reserved.contains(&text.to_ascii_lowercase().as_str())
    {
        return text.to_owned();
    }
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_lists_and_scalars() {
        let value = json!({
            "kind": "CSINode",
            "metadata": {"name": "node1", "annotations": {"a.b/c": "x,y"}},
            "spec": {"drivers": [{"name": "d", "nodeID": "1", "topologyKeys": ["k"], "n": {}}, {"name": "e"}]},
            "empty": [],
            "nested": [["a"], null, 7],
        });
        let expected = "\
empty: []
kind: CSINode
metadata:
  annotations:
    a.b/c: \"x,y\"
  name: node1
nested:
- - a
- null
- 7
spec:
  drivers:
  - \"n\": {}
    name: d
    nodeID: \"1\"
    topologyKeys:
    - k
  - name: e
";
        assert_eq!(document(&value), expected);
    }

    #[test]
    fn strings_that_yaml_would_misread_are_quoted() {
        for text in [
            "", "1", "1.0", "no", "True", "null", "-", "a: b", "a #b", "{}", "é", "a\nb", " a",
            "~", "y",
        ] {
            assert!(scalar(text).starts_with('"'), "{text:?}");
        }
        for text in ["node1", "csi.example.com", "kubernetes.io/gce-pd", "v1"] {
            assert_eq!(scalar(text), text);
        }
    }

    #[test]
    fn documents_are_separated() {
        assert_eq!(documents(&[json!({"a": 1}), json!({})]), "a: 1\n---\n{}\n");
    }
}
