//! Asks drivers for their volume limit again and again, where their CSIDriver object says how often, and keeps the CSINode
//! up to date with it (`csi_node_updater.go`). An attach that fails for want of room asks at once in a kubelet; there are
//! no attaches here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::drivers::{Asked, Drivers, NodeGetInfoError};
use super::node_info_manager::{InstallError, NodeInfoManager};
use super::node_store::UpdatePeriods;
use crate::klog;
use crate::manager::go_text::quote;
use crate::manager::lock;
use crate::manager::profile::Profile;

/// Why a driver's limit was not brought up to date (`updateCSIDriver`).
#[derive(Debug, thiserror::Error)]
enum UpdateError {
    #[error(
        "failed to create CSI client for driver {driver}: driver name {0} not found in the list of registered CSI drivers",
        driver = quote(.0)
    )]
    Unknown(String),
    #[error("failed to get NodeGetInfo from driver {}: {source}", quote(driver))]
    NodeGetInfo {
        driver: String,
        source: NodeGetInfoError,
    },
    #[error("failed to update driver {}: {source}", quote(driver))]
    Write {
        driver: String,
        source: InstallError,
    },
}

/// A ticker for each registered driver whose CSIDriver has a period. All end with this value.
#[derive(Debug)]
pub(super) struct CsiNodeUpdater {
    tickers: Arc<Tickers>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Tickers {
    drivers: Arc<Drivers>,
    node_info: Arc<NodeInfoManager>,
    periods: watch::Receiver<UpdatePeriods>,
    running: Mutex<BTreeMap<String, CancellationToken>>,
    stop: CancellationToken,
}

impl CsiNodeUpdater {
    /// Follows the CSIDrivers from now on; none where the profile does not, or where there is no cluster.
    pub(super) fn start(
        profile: Profile,
        drivers: Arc<Drivers>,
        node_info: Arc<NodeInfoManager>,
    ) -> Option<Self> {
        if !profile.updates_volume_limits() {
            return None;
        }
        let periods = node_info.update_periods()?;
        let stop = CancellationToken::new();
        let tickers = Arc::new(Tickers {
            drivers,
            node_info,
            periods: periods.clone(),
            running: Mutex::default(),
            stop: stop.clone(),
        });
        tokio::spawn(tickers.clone().follow(periods));
        Some(Self {
            tickers,
            _stop: stop.drop_guard(),
        })
    }

    /// The driver was registered or deregistered (`syncDriverUpdater`).
    pub(super) fn sync(&self, driver: &str) {
        self.tickers.sync(driver);
    }

    /// Drivers with a ticker.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        lock(&self.tickers.running).len()
    }
}

impl Tickers {
    async fn follow(self: Arc<Self>, mut periods: watch::Receiver<UpdatePeriods>) {
        let mut known = UpdatePeriods::new();
        loop {
            let now = periods.borrow_and_update().clone();
            let names: BTreeSet<_> = known.keys().chain(now.keys()).collect();
            for name in names {
                if known.get(name) != now.get(name) {
                    self.sync(name);
                }
            }
            known = now;
            tokio::select! {
                () = self.stop.cancelled() => return,
                changed = periods.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// Ends the driver's ticker, and begins another one if it is registered and has a period.
    fn sync(self: &Arc<Self>, driver: &str) {
        let mut running = lock(&self.running);
        if let Some(ticker) = running.remove(driver) {
            ticker.cancel();
        }
        let period = self.periods.borrow().get(driver).copied();
        let (Some(period), Some(_)) = (period, self.drivers.endpoint(driver)) else {
            return;
        };
        let end = self.stop.child_token();
        running.insert(driver.to_owned(), end.clone());
        let driver = driver.to_owned();
        tokio::spawn(self.clone().tick(driver, period, end));
    }

    /// The first tick comes after one period; those that a slow one misses are dropped. A tick under way is not cut short.
    async fn tick(self: Arc<Self>, driver: String, period: Duration, end: CancellationToken) {
        klog::verbose!(5, driver = %driver, ?period, "Starting periodic updates for driver");
        let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => break,
                _ = ticks.tick() => {}
            }
            if let Err(err) = self.update(&driver).await {
                tracing::error!(%err, driver, "Failed to update CSIDriver");
            }
        }
        klog::verbose!(4, driver = %driver, ?period, "Stopping periodic updates for driver");
    }

    async fn update(&self, driver: &str) -> Result<(), UpdateError> {
        let Some(endpoint) = self.drivers.endpoint(driver) else {
            return Err(UpdateError::Unknown(driver.to_owned()));
        };
        let asked = Asked {
            driver,
            endpoint: &endpoint,
            socket: None,
        };
        let info = self.drivers.node_get_info(asked, &self.stop).await;
        let info = info.map_err(|source| UpdateError::NodeGetInfo {
            driver: driver.to_owned(),
            source,
        })?;
        let written = self.node_info.update_driver(driver, &info).await;
        written.map_err(|source| UpdateError::Write {
            driver: driver.to_owned(),
            source,
        })
    }
}
