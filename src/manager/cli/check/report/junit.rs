//! For CI: one suite, each step a test case.

use std::fmt::Write as _;

use super::{Outcome, Record, Report};
use crate::manager::csi::yaml;

impl Report {
    pub(in crate::manager::cli::check) fn junit(&self) -> String {
        let count = |outcome| self.steps.iter().filter(|it| it.outcome == outcome).count();
        let counts = format!(
            r#"tests="{}" failures="{}" errors="0" skipped="{}" time="{:.3}""#,
            self.steps.len(),
            count(Outcome::Failed),
            count(Outcome::Skipped),
            self.steps
                .iter()
                .map(|record| record.at.as_secs_f64())
                .fold(0.0, f64::max)
        );
        let identity = &self.identity;
        let properties = [
            ("kubernetes", &identity.profile),
            ("node", &identity.node),
            ("registrar", &identity.registrar.join(" ")),
        ];
        let properties = properties.map(|(name, value)| {
            format!("<property name=\"{name}\" value=\"{}\"/>", escaped(value))
        });
        let cases: String = self.steps.iter().map(case).collect();
        let warnings: String = self.warnings.iter().fold(String::new(), |mut text, line| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "warning: {line}");
            text
        });
        let out = warnings + &yaml::documents(&self.objects);
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <testsuites name=\"kubelet-plugin-manager\" {counts}>\n\
             <testsuite name=\"registration\" {counts}>\n\
             <properties>\n{}\n</properties>\n\
             {cases}\
             <system-out>{}</system-out>\n\
             <system-err>{}</system-err>\n\
             </testsuite>\n\
             </testsuites>\n",
            properties.join("\n"),
            escaped(&out),
            escaped(&self.log.join("\n"))
        )
    }
}

fn case(record: &Record) -> String {
    let name = record.step.name();
    let time = record.took.as_secs_f64();
    let detail = escaped(&record.detail);
    let body = match record.outcome {
        Outcome::Passed => format!("<system-out>{detail}</system-out>"),
        Outcome::Failed => format!("<failure message=\"{detail}\">{detail}</failure>"),
        Outcome::Skipped => "<skipped/>".to_owned(),
    };
    format!(
        "<testcase classname=\"registration\" name=\"{name}\" time=\"{time:.3}\">{body}</testcase>\n"
    )
}

/// Text for an element or an attribute. What XML 1.0 cannot hold at all is replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back_from_a_parser() {
        let text = "<a b=\"c\">&'\n]]>\u{1b}[0m\0é\u{ffff}";
        let document = format!("<x y=\"{0}\">{0}</x>", escaped(text));
        let document = roxmltree::Document::parse(&document).unwrap();
        let expected = "<a b=\"c\">&'\n]]>\u{fffd}[0m\u{fffd}é\u{fffd}";
        assert_eq!(document.root_element().text(), Some(expected));
        let attribute = document.root_element().attribute("y");
        assert_eq!(attribute, Some(expected.replace('\n', " ").as_str()));
    }
}
