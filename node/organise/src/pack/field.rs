//! One field of a row of JSON. Nothing else of the row is kept: a line of many small values would take twenty times its length.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What a row has in a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field {
    Absent,
    Null,
    Text(String),
    /// Something that is no text, in words.
    Other(&'static str),
}

/// What the field of this name is, in a row or in an object of it: `doc.text`.
///
/// # Errors
/// The row is no JSON.
pub(super) fn field(row: &[u8], name: &str) -> serde_json::Result<Field> {
    let mut bytes = serde_json::Deserializer::from_slice(row);
    let found = Sought(Some(name)).deserialize(&mut bytes)?;
    bytes.end()?;
    Ok(found)
}

/// The field of this name within a value, or the value itself.
struct Sought<'n>(Option<&'n str>);

impl Sought<'_> {
    /// What this value is, if it is no object.
    fn is<E>(self, field: Field) -> Result<Field, E> {
        Ok(if self.0.is_some() { Field::Absent } else { field })
    }
}

impl<'de> DeserializeSeed<'de> for Sought<'_> {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Field, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Sought<'_> {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Field, A::Error> {
        let (mut own, mut inner) = (Field::Absent, Field::Absent);
        while let Some(key) = object.next_key::<String>()? {
            let rest = self.0.and_then(|name| name.split_once('.')).filter(|(outer, _)| *outer == key);
            match (self.0, rest) {
                (Some(name), _) if name == key => own = object.next_value_seed(Sought(None))?,
                (_, Some((_, rest))) => inner = object.next_value_seed(Sought(Some(rest)))?,
                _ => _ = object.next_value::<IgnoredAny>()?,
            }
        }
        Ok(match self.0 {
            None => Field::Other("an object"),
            Some(_) if own == Field::Absent => inner,
            Some(_) => own,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Field, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        self.is(Field::Other("a list"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Field, E> {
        self.is(Field::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Field, E> {
        self.is(Field::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
        self.is(Field::Other("a truth value"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Field, E> {
        self.is(Field::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Field, E> {
        self.is(Field::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Field, E> {
        self.is(Field::Other("a number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_where_its_name_leads() {
        let row = br#"{"a": {"b": "x", "c": [1, {"b": "no"}], "d.e": "z"}, "a.b": "y", "n": null, "k": 1.5, "t": true}"#;
        let text = |text: &str| Field::Text(text.into());
        for (name, expected) in [
            ("a.b", text("y")),
            ("a.d.e", text("z")),
            ("a.c", Field::Other("a list")),
            ("a.c.b", Field::Absent),
            ("a", Field::Other("an object")),
            ("n", Field::Null),
            ("n.x", Field::Absent),
            ("k", Field::Other("a number")),
            ("t", Field::Other("a truth value")),
            ("b", Field::Absent),
            ("", Field::Absent),
        ] {
            assert_eq!(field(row, name).unwrap(), expected, "{name}");
        }
        assert_eq!(field(br#"{"a": {"b": "x"}}"#, "a.b").unwrap(), text("x"));
        for broken in [&br#"{"a": "x""#[..], b"{} {}", b"", &b"[".repeat(1 << 20)] {
            assert!(field(broken, "a").is_err());
        }
    }
}
