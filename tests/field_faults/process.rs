//! Faults of the process's surroundings: signals, ports, rights, time that stands still, standard error.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use inotify::EventMask;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::field::{
    answering, complaints, failed, http_endpoint, identity, listening, loopback_address,
    registered, registering, registrar_through, through_shell,
};
use crate::seccomp;
use crate::socket::Changes;
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, get, registrar_command, until, within};

const NOTHING: [&str; 0] = [];

pub async fn f04_other_stop_signals() {
    for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let node = Node::new();
        let _driver = node.driver();
        let mut registrar = node.registrar(NOTHING);
        let socket = node.published_as(DRIVER).await;
        answering(&socket, DEADLINE).await;
        registrar.signal(signal);
        assert_eq!(registrar.exit().await.code(), Some(0), "{signal}");
        assert!(node.published().is_empty(), "{signal}");
    }
}

pub async fn f20_http_port_busy() {
    let node = Node::new();
    let _driver = node.driver();
    let address = loopback_address();
    let _busy = TcpListener::bind(address).unwrap();
    let mut changes = Changes::of(&node.registry());
    let log = failed(node.registrar([http_endpoint(address)]), DEADLINE).await;
    let explained = complaints(&log)
        .iter()
        .any(|line| line.contains(&address.to_string()));
    assert!(explained, "no word of {address}");
    assert!(node.published().is_empty());
    let appeared = changes.names(EventMask::all());
    assert!(appeared.is_empty(), "{appeared:?} was published");
}

pub async fn f21_stopped_before_the_driver_exists_as_process_1() {
    let node = Node::new();
    let shell = "exec unshare --pid --fork --kill-child \"$@\"";
    let registrar = registrar_through(&node, shell, &[]);
    let parent = registrar.pid();
    let mut first = None;
    until("a process in the namespace", || {
        first = child_of(parent);
        first.is_some_and(|pid| {
            // Not the fork of unshare any more.
            fs::read_link(format!("/proc/{pid}/exe"))
                .is_ok_and(|exe| exe == crate::support::registrar_binary().canonicalize().unwrap())
        })
    })
    .await;
    // Its first line comes after it has caught the signals.
    until("the log to begin", || !registrar.log().lines().is_empty()).await;
    let begin = Instant::now();
    kill(first.unwrap(), Signal::SIGTERM).unwrap();
    let mut registrar = registrar;
    let status = registrar.exit().await;
    assert_eq!(status.code(), Some(0), "{status:?}");
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
}

/// The process that another one forked.
pub fn child_of(parent: Pid) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    Some(Pid::from_raw(
        children.split_whitespace().next()?.parse().ok()?,
    ))
}

pub async fn f25_read_only_root_no_capabilities_seccomp() {
    let node = Node::new();
    let _driver = node.driver();
    let registry = node.registry();
    let address = loopback_address();
    // Every mount becomes read-only but the registry. Then no capability is left, and none can be had.
    let shell = format!(
        "mount --bind {0} {0} && mount -o remount,bind,ro / && \
         exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all \"$@\"",
        registry.display()
    );
    let shell = format!("exec unshare -m --propagation private sh -c '{shell}' sh \"$@\"");
    let command = through_shell(&node, &shell, &[http_endpoint(address)]);
    let mut registrar = seccomp::spawn_restricted(command);
    let socket = registry.join(format!("{DRIVER}-reg.sock"));
    answering(&socket, DEADLINE).await;
    let status = fs::read_to_string(format!("/proc/{}/status", registrar.pid())).unwrap();
    for restriction in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(restriction), "{restriction} in {status}");
    }
    Kubelet::register(&socket).await;
    listening(address).await;
    assert_eq!(get(address, "/healthz").await.status, 200);
    assert!(complaints(&registrar.log().text()).is_empty());
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit().await.code(), Some(0));
    assert!(node.published().is_empty());
}

pub async fn f28_stopped_for_a_minute() {
    let node = Node::new();
    let _driver = node.driver();
    let address = loopback_address();
    let registrar = node.registrar([http_endpoint(address)]);
    let socket = node.published_as(DRIVER).await;
    let kubelet = registered(&socket).await;
    let before = identity(&socket);
    registrar.signal(Signal::SIGSTOP);
    tokio::time::sleep(Duration::from_mins(1)).await;
    registrar.signal(Signal::SIGCONT);
    kubelet.get_info().await;
    Kubelet::register(&socket).await;
    assert_eq!(identity(&socket), before, "it was published anew");
    assert_eq!(get(address, "/healthz").await.status, 200);
    registrar.stop().await;
    assert!(node.published().is_empty());
}

/// A registrar whose standard error is somebody else's affair.
struct Unheard(Child);

impl Unheard {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap())
    }

    /// Registers, keeps on logging, and stops.
    async fn lives_and_stops(mut self, node: &Node, calls: usize) {
        let socket = node.published_as(DRIVER).await;
        let kubelet = registered(&socket).await;
        for _ in 0..calls {
            kubelet.get_info().await;
        }
        registering(&socket).await;
        kill(self.pid(), Signal::SIGTERM).unwrap();
        let status = within(DEADLINE, "the registrar to end", async {
            loop {
                if let Some(status) = self.0.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(status.code(), Some(0), "{status:?}");
        assert!(node.published().is_empty());
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub async fn f30_standard_error_closed_or_unread() {
    let more = ["-v=5".to_owned()];
    let node = Node::new();
    let driver = node.driver();
    let closed = through_shell(&node, "exec \"$@\" 2>&-", &more)
        .spawn()
        .unwrap();
    Unheard(closed).lives_and_stops(&node, 10).await;

    let piped = || {
        let mut command = registrar_command();
        command.args(node.arguments()).args(&more).arg0("registrar");
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut abandoned = piped();
    drop(abandoned.stderr.take());
    Unheard(abandoned).lives_and_stops(&node, 10).await;

    // A pipe holds 64 KiB, a call logs some hundred bytes.
    let unread = piped();
    Unheard(unread).lives_and_stops(&node, 1000).await;
    drop(driver);
}
