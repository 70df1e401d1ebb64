//! The table: a row for each question, a column for each binary.

use std::fmt;

use crate::samples::Samples;
use crate::subject::Subject;

/// A question and its answers, one for each binary; ours is the first.
#[derive(Debug)]
pub struct Row {
    what: String,
    unit: &'static str,
    answers: Vec<Samples>,
    budget: Option<Budget>,
}

/// What ours may need.
#[derive(Clone, Copy, Debug)]
pub enum Budget {
    /// So much, in the row's unit.
    AtMost(f64),
    /// This part of what each of the others needs.
    OfOthers(f64),
}

impl Row {
    pub fn new(what: impl Into<String>, unit: &'static str, answers: Vec<Samples>) -> Self {
        Self {
            what: what.into(),
            unit,
            answers,
            budget: None,
        }
    }

    pub fn within(self, budget: Budget) -> Self {
        let budget = Some(budget);
        Self { budget, ..self }
    }

    fn is_within_budget(&self) -> bool {
        let ours = self.answers[0].median();
        match self.budget {
            None => true,
            Some(Budget::AtMost(limit)) => ours <= limit,
            Some(Budget::OfOthers(part)) => self.answers[1..]
                .iter()
                .all(|others| ours <= others.median() * part),
        }
    }

    fn verdict(&self) -> String {
        let limit = match self.budget {
            None => return String::new(),
            Some(Budget::AtMost(limit)) => format!("at most {}", quantity(limit, self.unit)),
            Some(Budget::OfOthers(part)) => format!("at most {part} of the others'"),
        };
        let missed = if self.is_within_budget() {
            ""
        } else {
            ": MISSED"
        };
        limit + missed
    }

    /// The median, between which quartiles it lies, and how many times ours it is.
    fn cell(&self, index: usize) -> String {
        let Some(answer) = self.answers.get(index) else {
            return String::new();
        };
        let (low, high) = (answer.percentile(25), answer.percentile(75));
        let spread = (low < high).then(|| format!(" ({} to {})", number(low), number(high)));
        let ratio = answer.median() / self.answers[0].median();
        let ratio = (index > 0 && ratio.is_finite()).then(|| format!(", {} times", number(ratio)));
        let median = quantity(answer.median(), self.unit);
        [Some(median), spread, ratio]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Rows about the same binaries. It prints itself as Markdown.
#[derive(Debug)]
pub struct Table {
    title: &'static str,
    columns: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    pub fn new(title: &'static str, subjects: &[Subject]) -> Self {
        Self {
            title,
            columns: subjects.iter().map(Subject::to_string).collect(),
            rows: Vec::new(),
        }
    }

    pub fn extend(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.rows.extend(rows);
    }

    pub fn is_within_budget(&self) -> bool {
        self.rows.iter().all(Row::is_within_budget)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns.join(" | ");
        writeln!(f, "| {} | {columns} | Budget |", self.title)?;
        writeln!(f, "|---|{}---|", "---|".repeat(self.columns.len()))?;
        for row in &self.rows {
            write!(f, "| {} |", row.what)?;
            for index in 0..self.columns.len() {
                write!(f, " {} |", row.cell(index))?;
            }
            writeln!(f, " {} |", row.verdict())?;
        }
        Ok(())
    }
}

fn quantity(value: f64, unit: &str) -> String {
    format!("{} {unit}", number(value)).trim_end().to_owned()
}

/// Three digits, or all that are before the point.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    let decimals = match () {
        () if magnitude.fract() == 0.0 || magnitude >= 99.95 => 0,
        () if magnitude >= 9.995 => 1,
        () => 2,
    };
    format!("{value:.decimals$}")
}
