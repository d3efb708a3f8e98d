//! JSON, written and not read.

use std::fmt;

pub(super) enum Json {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Self>),
    /// In this order; the names are ours, without characters to escape.
    Object(Vec<(&'static str, Self)>),
}

impl Json {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn text_or_null(text: Option<&String>) -> Self {
        text.map_or(Self::Null, Self::text)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Text(text) => quoted(f, text),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Object(members) => {
                f.write_str("{")?;
                for (index, (name, value)) in members.iter().enumerate() {
                    write!(f, "{}\"{name}\": {value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

/// RFC 8259, section 7: the quotation mark, the backslash and what is below a space must be escaped; the rest may stay.
fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_where_it_must_be_and_nowhere_else() {
        let text = Json::text("a\"b\\c\nd\te\u{0}f\u{1f}\u{7f} 'ü' \u{1f980} /");
        let expected = "\"a\\\"b\\\\c\\nd\\u0009e\\u0000f\\u001f\u{7f} 'ü' \u{1f980} /\"";
        assert_eq!(text.to_string(), expected);
    }

    #[test]
    fn values_nest() {
        let json = Json::Object(vec![
            ("none", Json::Null),
            ("list", Json::List(vec![Json::Number(1), Json::Bool(true), Json::List(Vec::new())])),
            ("object", Json::Object(Vec::new())),
        ]);
        assert_eq!(json.to_string(), r#"{"none": null, "list": [1, true, []], "object": {}}"#);
    }
}
