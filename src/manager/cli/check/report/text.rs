//! For people.

use super::{Outcome, Report, Step};
use crate::manager::cli::terminal::{Style, Tone, printable};
use crate::manager::csi::yaml;

/// Lines of the registrar's output after a failure.
const LOG_LINES: usize = 15;

impl Report {
    pub(in crate::manager::cli::check) fn text(&self, style: Style) -> String {
        let identity = &self.identity;
        let command = printable(&identity.registrar.join(" "));
        let mut lines = vec![
            style.paint(Tone::Heading, &command),
            format!(
                "as the kubelet of Kubernetes {} sees it, on node {}",
                identity.profile, identity.node
            ),
            String::new(),
        ];
        lines.extend(self.steps.iter().map(|record| {
            let (tone, mark) = match record.outcome {
                Outcome::Passed => (Tone::Good, "ok  "),
                Outcome::Failed => (Tone::Bad, "FAIL"),
                Outcome::Skipped => (Tone::Quiet, "-   "),
            };
            let name = record.step.name();
            let mark = style.paint(tone, mark);
            if record.outcome == Outcome::Skipped {
                return format!("  {mark}  {:>9}  {name}", "");
            }
            let at = format!("{:7.3} s", record.at.as_secs_f64());
            format!("  {mark}  {at}  {name:15} {}", printable(&record.detail))
        }));
        lines.push(String::new());
        for warning in &self.warnings {
            let word = style.paint(Tone::Doubtful, "warning:");
            lines.push(format!("{word} {}", printable(warning)));
        }
        if !self.warnings.is_empty() {
            lines.push(String::new());
        }
        let mut steps = self.steps.iter();
        if steps.any(|it| it.step == Step::Node && it.outcome == Outcome::Passed) {
            lines.push(style.paint(Tone::Heading, "Objects when the registration ended"));
            lines.push(yaml::documents(&self.objects));
        }
        lines.extend(self.conclusion(style));
        lines.join("\n") + "\n"
    }

    fn conclusion(&self, style: Style) -> Vec<String> {
        let Some(reason) = &self.reason else {
            let text = "PASSED: a kubelet would have the driver registered, and the stop left nothing behind.";
            return vec![style.paint(Tone::Good, text)];
        };
        let mut lines = Vec::new();
        let last = self.log.len().saturating_sub(LOG_LINES);
        if !self.log.is_empty() {
            lines.push(style.paint(Tone::Heading, "What the registrar wrote last"));
            lines.extend(
                self.log[last..]
                    .iter()
                    .map(|line| format!("  {}", printable(line))),
            );
            lines.push(String::new());
        }
        lines.push(style.paint(Tone::Bad, &printable(&format!("FAILED: {reason}"))));
        lines
    }
}
