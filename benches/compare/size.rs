//! What is downloaded and kept on disk.

use std::fs;

use crate::samples::Samples;
use crate::subject::Subject;
use crate::table::{Budget, Row};

/// Bytes of a megabyte, as registries count.
const MEGABYTE: f64 = 1e6;

pub fn rows(subjects: &[Subject]) -> Vec<Row> {
    let sizes = subjects.iter().map(|subject| {
        let bytes = fs::metadata(subject.binary()).unwrap().len();
        #[allow(clippy::cast_precision_loss, reason = "files are below 2^52 bytes")]
        Samples::exact(bytes as f64 / MEGABYTE)
    });
    let row = Row::new("Binary", "MB", sizes.collect());
    vec![row.within(Budget::AtMost(3.0))]
}
