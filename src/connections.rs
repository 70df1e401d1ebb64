//! A bounded server of connections, shared by the registration service and the HTTP server: how many at once, who has to
//! go when there are too many, what happens when accept fails, and how it all ends.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use nix::errno::Errno;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::limits::ACCEPT_PAUSE;

/// A bound listener, over any transport.
pub trait Listener {
    /// What it accepts.
    type Stream;

    /// Polls for the next connection.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Stream>>;
}

impl Listener for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Stream>> {
        self.poll_accept(cx).map_ok(|(stream, _)| stream)
    }
}

impl Listener for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Stream>> {
        self.poll_accept(cx).map_ok(|(stream, _)| stream)
    }
}

/// Several addresses served as one, under one limit.
impl<L: Listener> Listener for Vec<L> {
    type Stream = L::Stream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Stream>> {
        self.iter()
            .map(|listener| listener.poll_accept(cx))
            .find(Poll::is_ready)
            .unwrap_or(Poll::Pending)
    }
}

/// What a connection's own future is given: a mark to set when it has completed a request, and word of the end.
#[derive(Clone, Debug)]
pub struct Session {
    completed: Arc<AtomicBool>,
    stop: watch::Receiver<()>,
}

impl Session {
    /// This connection has shown that a real client is behind it: it is not the first to go at the limit.
    pub fn completed_a_request(&self) {
        self.completed.store(true, Ordering::Relaxed);
    }

    /// Returns when the server stops: finish what is in flight and close.
    pub async fn stopped(&mut self) {
        // The sender sends nothing: it is dropped at the end.
        while self.stop.changed().await.is_ok() {}
    }
}

/// Accepts until `stop` resolves, at most `limit` connections at once; then closes the listener and gives the connections
/// in flight up to `drain` to end.
///
/// At the limit, and where descriptors run out, the oldest connection that never completed a request is closed, else the
/// oldest of all. So whoever opens connections and says nothing cannot keep a kubelet out.
pub async fn serve<L, F, C>(
    listener: L,
    limit: usize,
    stop: impl Future<Output = ()>,
    drain: Duration,
    mut connection: F,
) where
    L: Listener,
    F: FnMut(L::Stream, Session) -> C,
    C: Future<Output = ()> + Send + 'static,
{
    let (stop_sender, stop_receiver) = watch::channel(());
    let mut open = Open::new(limit);
    let accepting = async {
        let mut failing = false;
        loop {
            match open.next(&listener).await {
                Ok(stream) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!("Accepting connections again");
                    }
                    let session = Session {
                        completed: Arc::default(),
                        stop: stop_receiver.clone(),
                    };
                    open.admit(session.completed.clone(), connection(stream, session));
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(err = %error, "Cannot accept connections, trying again");
                    }
                    if is_out_of_descriptors(&error) {
                        open.make_room();
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = stop => {}
        never = accepting => never,
    }
    drop(listener);
    drop(stop_sender);
    let _ = tokio::time::timeout(drain, open.finish()).await;
}

/// Whether the process or the system has no file descriptor left.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EMFILE | Errno::ENFILE)
    )
}

struct Open {
    limit: usize,
    tasks: JoinSet<()>,
    /// Oldest first.
    entries: VecDeque<(AbortHandle, Arc<AtomicBool>)>,
}

impl Open {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            tasks: JoinSet::new(),
            entries: VecDeque::new(),
        }
    }

    /// The next connection; connections that end meanwhile are forgotten.
    async fn next<L: Listener>(&mut self, listener: &L) -> io::Result<L::Stream> {
        poll_fn(|cx| {
            let mut ended = false;
            while let Poll::Ready(Some(_)) = self.tasks.poll_join_next(cx) {
                ended = true;
            }
            if ended {
                self.entries.retain(|(task, _)| !task.is_finished());
            }
            listener.poll_accept(cx)
        })
        .await
    }

    fn admit(
        &mut self,
        completed: Arc<AtomicBool>,
        connection: impl Future<Output = ()> + Send + 'static,
    ) {
        if self.entries.len() >= self.limit {
            self.make_room();
        }
        let task = self.tasks.spawn(connection);
        self.entries.push_back((task, completed));
    }

    /// Closes the oldest connection that never completed a request, else the oldest of all.
    fn make_room(&mut self) {
        let silent = self
            .entries
            .iter()
            .position(|(_, completed)| !completed.load(Ordering::Relaxed));
        if let Some((task, _)) = self.entries.remove(silent.unwrap_or(0)) {
            task.abort();
        }
    }

    async fn finish(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::oneshot;

    use super::*;

    /// Holds its connections open, in the order of arrival, and tells when one is closed.
    #[derive(Clone, Default)]
    struct Held(Arc<Mutex<Vec<Connection>>>);

    /// What its own future was given, and whether that future still lives.
    type Connection = (Session, std::sync::Weak<()>);

    impl Held {
        fn hold(&self, stream: UnixStream, session: Session) -> impl Future<Output = ()> + use<> {
            let alive = Arc::new(());
            self.0
                .lock()
                .unwrap()
                .push((session.clone(), Arc::downgrade(&alive)));
            let mut session = session;
            async move {
                session.stopped().await;
                drop((stream, alive));
            }
        }

        fn open(&self) -> Vec<bool> {
            let held = self.0.lock().unwrap();
            held.iter()
                .map(|(_, alive)| alive.strong_count() > 0)
                .collect()
        }

        async fn until(&self, wanted: &[bool]) {
            let waiting = async {
                while self.open() != wanted {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(5), waiting)
                .await
                .unwrap_or_else(|_| panic!("{:?} instead of {wanted:?}", self.open()));
        }
    }

    async fn with_server(limit: usize, test: impl AsyncFnOnce(&std::path::Path, &Held)) -> Held {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let held = Held::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let holder = held.clone();
        let server = serve(
            listener,
            limit,
            async {
                let _ = stopped.await;
            },
            Duration::from_secs(5),
            move |stream, session| holder.hold(stream, session),
        );
        let testing = async {
            test(&path, &held).await;
            drop(stop);
        };
        tokio::join!(server, testing);
        held
    }

    #[tokio::test]
    async fn at_the_limit_the_oldest_silent_connection_goes() {
        with_server(3, async |path, held| {
            let mut clients = Vec::new();
            for n in 0..3 {
                clients.push(UnixStream::connect(path).await.unwrap());
                held.until(&vec![true; n + 1]).await;
            }
            held.0.lock().unwrap()[0].0.completed_a_request();
            clients.push(UnixStream::connect(path).await.unwrap());
            held.until(&[true, false, true, true]).await;
        })
        .await;
    }

    #[tokio::test]
    async fn where_all_have_spoken_the_oldest_goes() {
        with_server(2, async |path, held| {
            let mut clients = Vec::new();
            for n in 0..2 {
                clients.push(UnixStream::connect(path).await.unwrap());
                held.until(&vec![true; n + 1]).await;
                held.0.lock().unwrap()[n].0.completed_a_request();
            }
            clients.push(UnixStream::connect(path).await.unwrap());
            held.until(&[false, true, true]).await;
        })
        .await;
    }

    #[tokio::test]
    async fn the_end_reaches_every_connection() {
        let held = with_server(8, async |path, held| {
            let _clients = [
                UnixStream::connect(path).await.unwrap(),
                UnixStream::connect(path).await.unwrap(),
            ];
            held.until(&[true, true]).await;
        })
        .await;
        assert_eq!(held.open(), [false, false]);
    }

    /// Has one connection to give, then no descriptor.
    struct UsedUp(UnixListener, AtomicBool);

    impl Listener for UsedUp {
        type Stream = UnixStream;

        fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
            if self.1.load(Ordering::Relaxed) {
                let error = io::Error::from_raw_os_error(Errno::EMFILE as i32);
                return Poll::Ready(Err(error));
            }
            let accepted = Listener::poll_accept(&self.0, cx);
            self.1.store(accepted.is_ready(), Ordering::Relaxed);
            accepted
        }
    }

    #[tokio::test]
    async fn where_descriptors_run_out_a_silent_connection_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UsedUp(UnixListener::bind(&path).unwrap(), AtomicBool::new(false));
        let held = Held::default();
        let holder = held.clone();
        let server = serve(
            listener,
            8,
            std::future::pending(),
            Duration::ZERO,
            move |stream, session| holder.hold(stream, session),
        );
        let testing = async {
            let _client = UnixStream::connect(&path).await.unwrap();
            held.until(&[false]).await;
        };
        tokio::select! {
            () = server => {}
            () = testing => {}
        }
    }

    struct Failing(Arc<Mutex<u32>>);

    impl Listener for Failing {
        type Stream = ();

        fn poll_accept(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            *self.0.lock().unwrap() += 1;
            Poll::Ready(Err(io::Error::from_raw_os_error(
                nix::errno::Errno::EMFILE as i32,
            )))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_accept_is_tried_again_calmly() {
        let attempts = Arc::default();
        serve(
            Failing(Arc::clone(&attempts)),
            1,
            tokio::time::sleep(Duration::from_millis(1050)),
            Duration::ZERO,
            |(), _| async {},
        )
        .await;
        assert_eq!(*attempts.lock().unwrap(), 11);
    }
}
