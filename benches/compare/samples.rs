//! Numbers that were measured several times.

/// What the runs of one row and one binary gave, sorted. At least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn new(mut values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "nothing was measured");
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// A number that does not vary.
    pub fn exact(value: f64) -> Self {
        Self(vec![value])
    }

    /// The smallest value that so many percent of all do not exceed (nearest rank).
    pub fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0[rank.max(1) - 1]
    }

    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    pub fn largest(&self) -> f64 {
        self.percentile(100)
    }
}
