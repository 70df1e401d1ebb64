//! The JSON lines of component-base: `{"ts":1796065873882.6836,"caller":"klog/json.rs:1","msg":"Message","v":0,"key":"value"}`.

use std::fmt::{self, Write};
use std::time::UNIX_EPOCH;

use super::record::{Record, Severity, Value};

pub(super) fn write(line: &mut String, record: &Record<'_>) -> fmt::Result {
    let since = record.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    // A float of milliseconds has microseconds for as long as this format lives.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the original's timestamps have no more"
    )]
    let millis = since.as_nanos() as f64 / 1e6;
    // The file with its directory.
    let directory = record.file.rmatch_indices('/').nth(1);
    let file = directory.map_or(record.file, |(slash, _)| &record.file[slash + 1..]);
    write!(line, r#"{{"ts":{millis},"caller":"#)?;
    write_string(line, format_args!("{file}:{}", record.line))?;
    line.write_str(r#","msg":"#)?;
    write_string(line, format_args!("{}", record.contents.message))?;
    match record.severity {
        Severity::Info(level) => write!(line, r#","v":{}"#, level.get())?,
        Severity::Warning => line.write_str(r#","v":0"#)?,
        Severity::Error => {}
    }
    for (key, value) in &record.contents.fields {
        write!(line, r#","{key}":"#)?;
        match value {
            Value::Text(text) => write_string(line, format_args!("{text}"))?,
            bare => bare.write_bare(line)?,
        }
    }
    if let Some(err) = &record.contents.err {
        line.write_str(r#","err":"#)?;
        write_string(line, format_args!("{err}"))?;
    }
    line.write_str("}\n")
}

/// Quoted and escaped as zap does.
fn write_string(line: &mut String, text: fmt::Arguments<'_>) -> fmt::Result {
    struct Escape<'a>(&'a mut String);

    impl Write for Escape<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            text.chars().try_for_each(|c| self.write_char(c))
        }

        fn write_char(&mut self, c: char) -> fmt::Result {
            match c {
                '"' | '\\' => write!(self.0, "\\{c}"),
                '\n' => self.0.write_str("\\n"),
                '\r' => self.0.write_str("\\r"),
                '\t' => self.0.write_str("\\t"),
                '\0'..=' ' if c != ' ' => write!(self.0, "\\u{:04x}", u32::from(c)),
                c => self.0.write_char(c),
            }
        }
    }

    line.write_char('"')?;
    Escape(line).write_fmt(text)?;
    line.write_char('"')
}
