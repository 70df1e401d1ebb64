//! klog's text lines: `I1130 15:35:31.481244   15962 file.rs:180] "Message" key="value" n=3`.

use std::fmt::{self, Write};
use std::time::UNIX_EPOCH;

use super::Zone;
use super::record::{Record, Severity, Value};
use crate::goflag::Quoted;

pub(super) fn write(line: &mut String, record: &Record<'_>, zone: &Zone) -> fmt::Result {
    let severity = match record.severity {
        Severity::Info(_) => 'I',
        Severity::Warning => 'W',
        Severity::Error => 'E',
    };
    let since = record.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let time = zone.date_time(seconds, since.subsec_nanos());
    let file = record.file.rsplit('/').next().unwrap_or(record.file);
    write!(
        line,
        "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:>7} {file}:{}] {}",
        time.month(),
        time.month_day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.nanoseconds() / 1_000,
        record.pid,
        record.line,
        Quoted::new(&record.contents.message),
    )?;
    if let Some(err) = &record.contents.err {
        line.write_str(" err")?;
        write_text(line, err)?;
    }
    for (key, value) in &record.contents.fields {
        write!(line, " {key}")?;
        match value {
            Value::Text(text) => write_text(line, text)?,
            bare => {
                line.write_char('=')?;
                bare.write_bare(line)?;
            }
        }
    }
    line.write_char('\n')
}

/// Quoted, or as an indented block if it has several lines.
fn write_text(line: &mut String, text: &str) -> fmt::Result {
    if !text.contains('\n') {
        return write!(line, "={}", Quoted::new(text));
    }
    line.write_str("=<\n")?;
    for part in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        writeln!(line, "\t{part}")?;
    }
    line.write_str(" >")
}
