//! A bound on work that is begun by others: what comes in last is always taken on, and what has gone on for longest has
//! to go. So whoever begins and never ends cannot keep anybody out, nor hold more than the bound.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// Work in flight, at most so much of it at once. Clones share the bound.
#[derive(Clone, Debug)]
pub struct InFlight {
    limit: usize,
    /// Oldest first; dropping one cuts its work off.
    cuts: Arc<Mutex<VecDeque<oneshot::Sender<()>>>>,
}

impl InFlight {
    /// Nothing in flight yet.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            cuts: Arc::default(),
        }
    }

    /// Does `work`, and cuts off the oldest work if there is too much. `None` if that happens to this one.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (cut, is_cut) = oneshot::channel();
        {
            let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
            cuts.retain(|cut| !cut.is_closed());
            if cuts.len() >= self.limit {
                cuts.pop_front();
            }
            cuts.push_back(cut);
        }
        tokio::select! {
            // What needs not wait is done, however large the crowd.
            biased;
            result = work => Some(result),
            _ = is_cut => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn the_oldest_work_makes_room_for_the_newest() {
        let in_flight = InFlight::new(2);
        let spawn = || {
            let in_flight = in_flight.clone();
            tokio::spawn(async move { in_flight.run(pending::<()>()).await })
        };
        let (first, second) = (spawn(), spawn());
        tokio::task::yield_now().await;
        assert_eq!(in_flight.run(async { 1 }).await, Some(1));
        assert_eq!(first.await.unwrap(), None);
        // What is over takes no room.
        assert_eq!(in_flight.run(async { 2 }).await, Some(2));
        assert!(!second.is_finished());
        let third = spawn();
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(third);
    }
}
