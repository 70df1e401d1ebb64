//! One log line before it has a format: what a `tracing` event says, sorted the way klog's formats need it.

use std::error::Error;
use std::fmt::{self, Debug, Write};
use std::time::SystemTime;

use tracing::field::{Field, Visit};

use super::Level;

/// Longest message or value, in bytes. What is longer is cut, so that no peer decides how much memory a line takes.
pub(super) const MAX_VALUE: usize = 32 * 1024;

/// Follows what was cut.
const CUT: &str = "...";

/// A line's header and contents.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) severity: Severity,
    pub(super) time: SystemTime,
    pub(super) pid: u32,
    /// As the compiler gives it, `src/klog/record.rs`.
    pub(super) file: &'a str,
    pub(super) line: u32,
    pub(super) contents: Contents,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Info(Level),
    Warning,
    Error,
}

/// What an event says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Contents {
    pub(super) message: String,
    /// The field `err`, which text shows first and JSON last.
    pub(super) err: Option<String>,
    pub(super) fields: Vec<(&'static str, Value)>,
}

/// A field's value.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
}

impl Contents {
    fn text(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = text,
            "err" => self.err = Some(text),
            _ => self.value(field, Value::Text(text)),
        }
    }

    fn value(&mut self, field: &Field, value: Value) {
        self.fields.push((field.name(), value));
    }
}

impl Visit for Contents {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text(field, clipped(format_args!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, clipped(format_args!("{value}")));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.text(field, clipped(format_args!("{value}")));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.value(field, Value::Signed(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.value(field, Value::Unsigned(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.value(field, Value::Float(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.value(field, Value::Bool(value));
    }
}

impl Value {
    /// Numbers and booleans, which both formats write alike (zap's way for what is no JSON number).
    pub(super) fn write_bare(&self, line: &mut String) -> fmt::Result {
        match self {
            Self::Text(text) => line.write_str(text),
            Self::Signed(value) => write!(line, "{value}"),
            Self::Unsigned(value) => write!(line, "{value}"),
            Self::Float(value) if value.is_nan() => line.write_str(r#""NaN""#),
            Self::Float(f64::INFINITY) => line.write_str(r#""+Inf""#),
            Self::Float(f64::NEG_INFINITY) => line.write_str(r#""-Inf""#),
            Self::Float(value) => write!(line, "{value}"),
            Self::Bool(value) => write!(line, "{value}"),
        }
    }
}

/// The text of `arguments` up to `MAX_VALUE`.
fn clipped(arguments: fmt::Arguments<'_>) -> String {
    struct Clip(String);

    impl Write for Clip {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = text.floor_char_boundary(MAX_VALUE - self.0.len());
            self.0.push_str(&text[..room]);
            if room < text.len() {
                Err(fmt::Error)
            } else {
                Ok(())
            }
        }
    }

    let mut clip = Clip(String::new());
    let complete = clip.write_fmt(arguments).is_ok();
    if !complete {
        clip.0.push_str(CUT);
    }
    clip.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        assert_eq!(
            clipped(format_args!("{}", "x".repeat(MAX_VALUE))).len(),
            MAX_VALUE
        );
        let cut = clipped(format_args!("x{}", "é".repeat(MAX_VALUE)));
        assert_eq!(cut.len(), MAX_VALUE - 1 + CUT.len());
        assert!(cut.ends_with("é..."));
        let pieces = vec![7_u8; MAX_VALUE];
        assert_eq!(
            clipped(format_args!("{pieces:?}")).len(),
            MAX_VALUE + CUT.len()
        );
    }
}
