//! `/debug/pprof/profile`: a CPU profile that `go tool pprof` opens, in builds with the cargo feature `pprof`.

#[cfg(not(feature = "pprof"))]
pub(super) use absent::profile;
#[cfg(feature = "pprof")]
pub(super) use present::profile;

#[cfg(not(feature = "pprof"))]
mod absent {
    use http::StatusCode;

    use crate::http::Answer;

    /// Says that there is no profiler.
    #[allow(clippy::unused_async, reason = "the other build waits for its samples")]
    pub(crate) async fn profile(_query: &str) -> Answer {
        Answer::text(
            StatusCode::NOT_IMPLEMENTED,
            "this build has no CPU profiler; build it with the cargo feature pprof\n",
        )
    }
}

#[cfg(feature = "pprof")]
mod present {
    use std::time::Duration;

    use http::StatusCode;
    use pprof::ProfilerGuardBuilder;
    use pprof::protos::Message;

    use crate::http::Answer;

    /// What Go's `net/http/pprof` takes without `seconds`.
    const DEFAULT_SECONDS: u64 = 30;

    /// The longest profile; a longer wish is cut to it.
    const MAX_SECONDS: u64 = 300;

    /// Samples in a second of CPU time, as Go's.
    const FREQUENCY: i32 = 100;

    /// Samples the process for `seconds=N` of the query. One profile at a time.
    pub(crate) async fn profile(query: &str) -> Answer {
        let seconds = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("seconds="));
        let seconds = match seconds.map_or(Ok(DEFAULT_SECONDS), str::parse) {
            Ok(seconds @ 1..) => seconds.min(MAX_SECONDS),
            _ => return Answer::text(StatusCode::BAD_REQUEST, "seconds is no positive number\n"),
        };
        match sample(Duration::from_secs(seconds)).await {
            Ok(profile) => Answer {
                status: StatusCode::OK,
                content_type: "application/octet-stream",
                body: profile.into(),
            },
            Err(error) => Answer::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("cannot profile: {error}; is another profile being taken?\n"),
            ),
        }
    }

    async fn sample(duration: Duration) -> pprof::Result<Vec<u8>> {
        let guard = ProfilerGuardBuilder::default()
            .frequency(FREQUENCY)
            // Their unwind tables are not safe to walk from a signal handler.
            .blocklist(&["libc", "libgcc", "pthread", "vdso"])
            .build()?;
        tokio::time::sleep(duration).await;
        Ok(guard.report().build()?.pprof()?.encode_to_vec())
    }
}
