//! `wait.ExponentialBackoff` of `k8s.io/apimachinery/pkg/util/wait`: so many attempts, with growing sleeps in between.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Attempts and the sleeps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    /// Attempts in all; there is no sleep after the last.
    pub(super) attempts: u32,
    /// First sleep.
    pub(super) first: Duration,
    /// What each next sleep is multiplied with.
    pub(super) factor: u32,
    /// Percent of each sleep that chance may add to it.
    pub(super) jitter: u8,
}

impl Steps {
    /// Calls `attempt` until it succeeds or the attempts are used up; then all its errors, in order.
    pub(super) async fn run<T, E, A>(self, mut attempt: impl FnMut() -> A) -> Result<T, Vec<E>>
    where
        A: Future<Output = Result<T, E>>,
    {
        let mut errors = Vec::new();
        let mut sleep = self.first;
        for number in 1..=self.attempts {
            match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => errors.push(error),
            }
            if number < self.attempts {
                let jitter = f64::from(self.jitter) / 100.0;
                tokio::time::sleep(sleep.mul_f64(1.0 + jitter * chance())).await;
                sleep *= self.factor;
            }
        }
        Err(errors)
    }
}

/// A number in `0.0..1.0`. `RandomState` is the standard library's only source of chance; jitter needs no better one.
pub(super) fn chance() -> f64 {
    let bits = RandomState::new().hash_one(0_u8) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64")]
    let numerator = bits as f64;
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let denominator = (1_u64 << 53) as f64;
    numerator / denominator
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    const STEPS: Steps = Steps {
        attempts: 4,
        first: Duration::from_millis(10),
        factor: 5,
        jitter: 10,
    };

    #[tokio::test(start_paused = true)]
    async fn four_attempts_with_growing_sleeps_between() {
        let start = tokio::time::Instant::now();
        let mut at = Vec::new();
        let errors = STEPS
            .run(|| {
                at.push(start.elapsed());
                ready(Err::<(), _>(at.len()))
            })
            .await
            .unwrap_err();
        assert_eq!(errors, [1, 2, 3, 4]);
        let gaps: Vec<_> = at
            .windows(2)
            .map(|pair| pair[1].as_millis() - pair[0].as_millis())
            .collect();
        // A timer is rounded up to the next millisecond.
        for (gap, base) in gaps.iter().zip([10, 50, 250]) {
            assert!((base..=base * 11 / 10 + 1).contains(gap), "{gaps:?}");
        }
        assert_eq!(start.elapsed(), at[3], "no sleep after the last attempt");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_success_ends_it() {
        let mut calls = 0;
        let result = STEPS
            .run(|| {
                calls += 1;
                ready(if calls == 2 { Ok(calls) } else { Err(()) })
            })
            .await;
        assert_eq!(result, Ok(2));
    }

    #[test]
    fn chance_stays_in_its_range_and_differs() {
        let numbers: Vec<_> = (0..64).map(|_| chance()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(
            numbers
                .windows(2)
                .any(|pair| (pair[0] - pair[1]).abs() > 0.01)
        );
    }
}
