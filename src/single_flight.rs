//! One call in flight, its answer shared: however many ask at once, whoever is asked sees one caller.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Shares the answer of a call among everybody who asks while it is under way. Nothing is remembered: the next question
/// after the answer makes a new call.
#[derive(Debug)]
pub(crate) struct SingleFlight<T>(Arc<Mutex<Option<watch::Receiver<Option<T>>>>>);

impl<T> Clone for SingleFlight<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// The answer of the call under way, or of `call()` if there is none. The call goes on if the asker goes away, so it
    /// must have a deadline of its own. `None` if the call panicked.
    pub(crate) async fn ask<F>(&self, call: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut answer = {
            let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &*current {
                Some(under_way) if under_way.has_changed().is_ok() => under_way.clone(),
                _ => {
                    let (sender, receiver) = watch::channel(None);
                    let call = call();
                    tokio::spawn(async move {
                        sender.send_replace(Some(call.await));
                    });
                    *current = Some(receiver.clone());
                    receiver
                }
            }
        };
        let answered = answer.wait_for(Option::is_some).await;
        answered.ok().and_then(|answer| answer.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn askers_share_one_call_and_the_next_one_makes_another() {
        let calls = Arc::new(AtomicU32::new(0));
        let flight = SingleFlight::default();
        let ask = || {
            let calls = calls.clone();
            flight.ask(move || async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                calls.fetch_add(1, Ordering::Relaxed) + 1
            })
        };
        let (first, second, third) = tokio::join!(ask(), ask(), ask());
        assert_eq!([first, second, third], [Some(1); 3]);
        assert_eq!(ask().await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_asker_that_goes_away_takes_no_answer_with_it() {
        let flight = SingleFlight::default();
        let ask = || {
            flight.ask(|| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                7
            })
        };
        let hurried = tokio::time::timeout(Duration::from_millis(10), ask());
        let (hurried, patient) = tokio::join!(hurried, ask());
        assert!(hurried.is_err());
        assert_eq!(patient, Some(7));
    }
}
