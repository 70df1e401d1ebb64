//! What nobody has reported yet, and promises that are ours alone.

use std::fs;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::abuse::{Target, attack, idle};
use crate::field::{
    Usage, answering, answering_as, assert_memory_is_bounded, complaint, complaints,
    descriptors_at_most, failed, http_endpoint, identity, listening, loopback_address, name_at,
    registered, registering, registrar_through,
};
use crate::frames::{Attack, Client};
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, get, until};

const NOTHING: [&str; 0] = [];

/// A thread that goes on until this is dropped.
struct Storm(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Storm {
    fn of(mut gust: impl FnMut(u64) + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = std::thread::spawn(move || {
            let mut n = 0;
            while !ends.load(Ordering::Relaxed) {
                gust(n);
                n += 1;
            }
        });
        Self(over, Some(thread))
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().unwrap().join();
    }
}

pub async fn idle_without_a_system_call() {
    let node = Node::new();
    let _driver = node.driver();
    let target = Target::start(node, &[]).await;
    // The kubelet's connection is closed; what follows from that has its time.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let usage = target.usage;
    assert_eq!(usage.threads(), 1);
    let before = (usage.context_switches(), usage.processor_time());
    tokio::time::sleep(Duration::from_mins(1)).await;
    // A process that makes a system call runs; to run it must be switched to, and to sleep again it must be switched from.
    assert_eq!((usage.context_switches(), usage.processor_time()), before);
    Kubelet::dial(&target.socket).await.get_info().await;
    assert!(usage.context_switches() > before.0, "nothing was measured");
    target.registrar.stop().await;
}

pub async fn memory_under_abuse_of_the_registration_socket() {
    let node = Node::new();
    let _driver = node.driver();
    let mut target = Target::start(node, &[]).await;
    let path = target.socket.clone();
    // The windows of all streams at once, faster than anybody looks at them.
    for _ in 0..5 {
        let full = full_windows(&path);
        registering(&path).await;
        assert_memory_is_bounded(target.usage);
        drop(full);
    }
    // As many calls as the connections allow, each with a message that is all but complete.
    let largest = attack_with_messages(&path, 64 * 1024);
    registering(&path).await;
    assert_memory_is_bounded(target.usage);
    // Header blocks without an end beside them, and all at once what RFC 9113 section 10.5 lists.
    let blocks: Vec<_> = (0..64).map(|_| unfinished_block(&path)).collect();
    registering(&path).await;
    assert_memory_is_bounded(target.usage);
    drop((largest, blocks));
    for kind in Attack::ALL {
        let path = path.clone();
        let attacker = move || kind.run(&path, Duration::from_millis(500));
        attack(std::iter::repeat_n(attacker, 64)).await;
        assert_memory_is_bounded(target.usage);
    }
    target.is_well().await;
    // Nor does the log grow as the attacker likes.
    let lines = target.registrar.log().lines().len();
    assert!(lines < 50, "{lines} lines in the log");
    target.registrar.stop().await;
}

fn attack_with_messages(path: &Path, length: u32) -> Vec<Client> {
    const PIECE: u32 = 1024;
    let mut clients: Vec<_> = (0..64)
        .map(|_| {
            let mut client = Client::connect(path).unwrap();
            let _ = client.greet(&[]);
            for stream in [1, 3, 5, 7] {
                let _ = client.announce(stream, length);
            }
            let _ = client.flush();
            client
        })
        .collect();
    for _ in 1..length / PIECE {
        for client in &mut clients {
            for stream in [1, 3, 5, 7] {
                // Cut off is what may happen to it.
                let _ = client.feed(stream, &vec![b'x'; PIECE as usize]);
            }
            let _ = client.flush();
        }
        // The windows are opened again meanwhile; nobody here looks.
        std::thread::sleep(Duration::from_millis(10));
    }
    clients
}

fn full_windows(path: &Path) -> Vec<Client> {
    const FRAME: [u8; 4 * 1024] = [b'x'; 4 * 1024];
    let mut clients: Vec<_> = (0..64).map(|_| Client::connect(path).unwrap()).collect();
    for client in &mut clients {
        let _ = client.greet(&[]);
        for stream in [1, 3, 5, 7] {
            let _ = client.announce(stream, 64 * 1024);
            for _ in 0..4 {
                let _ = client.feed(stream, &FRAME[5..]);
            }
        }
        let _ = client.flush();
    }
    clients
}

fn unfinished_block(path: &Path) -> Client {
    let mut client = Client::connect(path).unwrap();
    let _ = client.greet(&[]);
    let _ = client.open_block(16 * 1024);
    let _ = client.flush();
    client
}

pub async fn memory_under_abuse_of_the_http_server() {
    use std::io::Write;
    let node = Node::new();
    let _driver = node.driver();
    let mut target = Target::start(node, &[]).await;
    let http = target.http;
    let head = format!("GET /healthz HTTP/1.1\r\n{}", "a: b\r\n".repeat(60));
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(60 * 1024));
    let body = format!(
        "POST /healthz HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n{}",
        "y".repeat(60 * 1024)
    );
    let pipelined = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    let metrics = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    for says in [head, long, body, pipelined, metrics] {
        let clients: Vec<_> = (0..200)
            .map(|_| {
                let mut client = TcpStream::connect(http).unwrap();
                let timeout = Some(Duration::from_millis(10));
                client.set_write_timeout(timeout).unwrap();
                let _ = client.write_all(says.as_bytes());
                client
            })
            .collect();
        assert_eq!(get(http, "/healthz").await.status, 200);
        registering(&target.socket).await;
        assert_memory_is_bounded(target.usage);
        drop(clients);
    }
    target.is_well().await;
    target.registrar.stop().await;
}

pub async fn connections_left_half_closed_and_unread() {
    let node = Node::new();
    let _driver = node.driver();
    let mut target = Target::start(node, &[]).await;
    let before = target.usage.descriptors();
    for says in [
        b"".as_slice(),
        b"GET /healthz HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ] {
        let half = idle(&target.socket, target.http, 50, says);
        // Whoever has said all that he will ever say is not kept, though he reads on.
        let reading = tokio::task::spawn_blocking(move || {
            for (mut unix, mut tcp) in half {
                let _ = unix.shutdown(std::net::Shutdown::Write);
                let _ = tcp.shutdown(std::net::Shutdown::Write);
                assert!(is_ended(&mut unix) && is_ended(&mut tcp), "kept: {says:?}");
            }
        });
        reading.await.unwrap();
        descriptors_at_most(target.usage, before + 4).await;
    }
    target.is_well().await;
    target.registrar.stop().await;
}

/// Whether the other end closes; how it does is its affair.
fn is_ended(stream: &mut impl Read) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

pub async fn registration_while_descriptors_are_used_up() {
    let node = Node::new();
    let _driver = node.driver();
    let address = loopback_address();
    let shell = "ulimit -n 48; exec \"$@\"";
    let registrar = registrar_through(&node, shell, &[http_endpoint(address)]);
    let socket = node.published_as(DRIVER).await;
    answering(&socket, DEADLINE).await;
    listening(address).await;
    let held: Vec<_> = (0..60).map(|_| UnixStream::connect(&socket)).collect();
    registering(&socket).await;
    drop(held);
    registrar.stop().await;
}

pub async fn driver_comes_while_descriptors_are_used_up() {
    let node = Node::new();
    let address = loopback_address();
    let shell = "ulimit -n 48; exec \"$@\"";
    let mut registrar = registrar_through(&node, shell, &[http_endpoint(address)]);
    listening(address).await;
    let held: Vec<_> = (0..60).map(|_| TcpStream::connect(address)).collect();
    let _driver = node.driver();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(registrar.is_running());
    drop(held);
    answering(&node.registration_socket(DRIVER), DEADLINE).await;
    registrar.stop().await;
}

pub async fn storm_of_events_in_the_registration_directory() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    answering(&socket, DEADLINE).await;
    // More events than anybody can look at.
    let storms: Vec<_> = (0..2)
        .map(|n| {
            let names = ["one", "other"].map(|name| node.registry().join(format!("{name}{n}")));
            fs::write(&names[0], "").unwrap();
            Storm::of(move |_| {
                fs::rename(&names[0], &names[1]).unwrap();
                fs::rename(&names[1], &names[0]).unwrap();
            })
        })
        .collect();
    for _ in 0..2 {
        fs::remove_file(&socket).unwrap();
        answering(&socket, Duration::from_secs(5)).await;
        Kubelet::register(&socket).await;
    }
    registrar.stop().await;
    drop(storms);
    assert!(socket.symlink_metadata().is_err());
}

pub async fn overflow_of_the_event_queue() {
    let node = Node::new();
    let driver = node.driver();
    let registrar = node.registrar(NOTHING);
    let before = node.published_as(DRIVER).await;
    registered(&before).await;
    registrar.signal(Signal::SIGSTOP);
    // More than `fs.inotify.max_queued_events`: what happens afterwards leaves no event.
    let length = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let file = node.registry().join("file");
    for _ in 0..=length.trim().parse::<u32>().unwrap() / 2 {
        fs::write(&file, "").unwrap();
        fs::remove_file(&file).unwrap();
    }
    fs::remove_dir_all(node.registry()).unwrap();
    fs::create_dir(node.registry()).unwrap();
    driver.stop().await.unwrap();
    let _driver = node.driver_with(Behaviour::named("other.example.com"));
    registrar.signal(Signal::SIGCONT);
    let after = node.registration_socket("other.example.com");
    answering_as("other.example.com", &after, Duration::from_secs(10)).await;
    // The new directory is watched.
    fs::remove_file(&after).unwrap();
    answering_as("other.example.com", &after, Duration::from_secs(5)).await;
    registrar.stop().await;
    assert!(node.published().is_empty());
}

pub async fn registration_directory_replaced() {
    let node = Node::new();
    let _driver = node.driver();
    let mut registrar = node.registrar(NOTHING);
    let usage = Usage::of(registrar.pid());
    let socket = node.published_as(DRIVER).await;
    answering(&socket, DEADLINE).await;
    let registry = node.registry();
    let limit = Duration::from_secs(10);

    // Removed a moment after it was emptied: no event says so while any listener of it is open. The new one is watched.
    let other = registry.join("other-reg.sock");
    let open = UnixListener::bind(&other).unwrap();
    fs::remove_file(other).unwrap();
    fs::remove_file(&socket).unwrap();
    registrar
        .log()
        .line("The registration socket is gone")
        .await;
    fs::remove_dir(&registry).unwrap();
    fs::create_dir(&registry).unwrap();
    answering(&socket, limit).await;
    fs::remove_file(&socket).unwrap();
    answering(&socket, Duration::from_secs(5)).await;
    drop(open);

    fs::remove_dir_all(&registry).unwrap();
    fs::write(&registry, "text").unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(registrar.is_running());
    assert_eq!(fs::read_to_string(&registry).unwrap(), "text");
    fs::remove_file(&registry).unwrap();
    fs::create_dir(&registry).unwrap();
    answering(&socket, limit).await;

    // Moved away, with our socket in it. What was watched once is not watched for ever.
    let watches = || {
        let fds = fs::read_dir(format!("/proc/{}/fdinfo", registrar.pid())).unwrap();
        let infos = fds.filter_map(|fd| fs::read_to_string(fd.unwrap().path()).ok());
        infos
            .map(|info| info.matches("inotify wd:").count())
            .sum::<usize>()
    };
    for n in 0..5 {
        fs::rename(&registry, node.root().join(format!("away{n}"))).unwrap();
        fs::create_dir(&registry).unwrap();
        answering(&socket, limit).await;
    }
    until("a watch of each directory and no other", || watches() == 2).await;

    // A link to another one takes the place.
    let away = node.root().join("away");
    let target = node.root().join("target");
    fs::rename(&registry, &away).unwrap();
    fs::create_dir(&target).unwrap();
    symlink(&target, &registry).unwrap();
    answering(&socket, limit).await;
    Kubelet::register(&socket).await;

    descriptors_at_most(usage, 32).await;
    registrar.stop().await;
    assert!(node.published().is_empty());
}

pub async fn driver_directory_that_can_never_come_back() {
    let node = Node::new();
    let _driver = node.driver();
    let source = node.csi_socket().parent().unwrap().to_owned();
    let mount = node.root().join("mount");
    fs::create_dir(&mount).unwrap();
    let shell = format!(
        "mount --bind {} {} && exec \"$@\"",
        source.display(),
        mount.display()
    );
    let shell = format!("exec unshare -m --propagation private sh -c '{shell}' sh \"$@\"");
    let argument = format!("--csi-address={}/csi.sock", mount.display());
    let registrar = registrar_through(&node, &shell, &[argument]);
    let socket = node.published_as(DRIVER).await;
    registered(&socket).await;
    fs::remove_dir_all(&source).unwrap();
    let log = failed(registrar, Duration::from_secs(10)).await;
    let reason = complaints(&log).last().copied().unwrap_or_default();
    assert!(reason.contains(&mount.display().to_string()), "{reason}");
    assert!(node.published().is_empty());
}

pub async fn driver_socket_replaced_without_pause() {
    let node = Node::new();
    let driver = node.driver();
    let registrar = node.registrar(NOTHING);
    let usage = Usage::of(registrar.pid());
    let before = node.published_as(DRIVER).await;
    registered(&before).await;
    driver.stop().await.unwrap();
    let (path, fresh) = (node.csi_socket(), node.csi_socket().with_file_name("fresh"));
    let storm = Storm::of(move |n| {
        let listener = UnixListener::bind(&fresh).unwrap();
        // Every other one is closed before anybody can connect.
        let listener = n.is_multiple_of(2).then_some(listener);
        fs::rename(&fresh, &path).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        drop(listener);
    });
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        Kubelet::register(&before).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(storm);
    let _driver = node.driver_with(Behaviour::named("other.example.com"));
    let after = node.registration_socket("other.example.com");
    answering_as("other.example.com", &after, Duration::from_secs(5)).await;
    node.unpublished(DRIVER).await;
    descriptors_at_most(usage, 32).await;
    assert_memory_is_bounded(usage);
    registrar.stop().await;
}

pub async fn chain_of_driver_names() {
    let node = Node::new();
    let mut driver = Some(node.driver());
    let registrar = node.registrar(NOTHING);
    answering(&node.published_as(DRIVER).await, DEADLINE).await;
    for n in 0..40 {
        driver.take().unwrap().kill().await;
        driver = Some(node.driver_with(Behaviour::named(&format!("d{}.example.com", n % 3))));
        tokio::time::sleep(Duration::from_millis(n % 7 * 3)).await;
    }
    let last = "d0.example.com";
    let socket = node.registration_socket(last);
    answering_as(last, &socket, Duration::from_secs(5)).await;
    until("the other names to go", || {
        node.published() == [format!("{last}-reg.sock")]
    })
    .await;
    Kubelet::register(&socket).await;
    registrar.stop().await;
    assert!(node.published().is_empty());
}

pub async fn successor_with_another_name() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    answering(&socket, DEADLINE).await;
    let stranger = Node::new();
    let _other_driver = stranger.driver_with(Behaviour::named("other.example.com"));
    let _other = stranger.registrar(NOTHING);
    let other_socket = stranger.published_as("other.example.com").await;
    answering_as("other.example.com", &other_socket, DEADLINE).await;
    fs::rename(&other_socket, &socket).unwrap();
    complaint(&registrar, DEADLINE, &["another registrar"]).await;
    assert_eq!(name_at(&socket).await.as_deref(), Some("other.example.com"));
    // Three questions, ten seconds apart.
    answering(&socket, Duration::from_secs(40)).await;
    Kubelet::register(&socket).await;
    registrar.stop().await;
    assert!(node.published().is_empty());
}

pub async fn three_registrars_of_one_driver() {
    let node = Node::new();
    let _driver = node.driver();
    let socket = node.registration_socket(DRIVER);
    let mut all = Vec::new();
    for _ in 0..3 {
        let before = identity(&socket);
        all.push(node.registrar(NOTHING));
        until("the next socket", || {
            identity(&socket).is_some_and(|now| Some(now) != before)
        })
        .await;
        answering(&socket, DEADLINE).await;
    }
    // The newest goes; the other two see that at the same moment.
    all.pop().unwrap().stop().await;
    answering(&socket, Duration::from_secs(5)).await;
    // Whoever has it keeps it.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let settled = identity(&socket);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(identity(&socket), settled, "they fight for the path");
    Kubelet::register(&socket).await;
    for registrar in all {
        registrar.stop().await;
    }
    assert!(node.published().is_empty());
}

pub async fn ten_thousand_notifications() {
    let node = Node::new();
    let _driver = node.driver();
    let mut target = Target::start(node, &["--registration-failure-policy=retry"]).await;
    let kubelet = Kubelet::dial(&target.socket).await;
    kubelet.get_info().await;
    for n in 0..10_000 {
        kubelet
            .notify(if n % 2 == 0 { Err("boom") } else { Ok(()) })
            .await;
    }
    assert_eq!(get(target.http, "/readyz").await.status, 200);
    assert_memory_is_bounded(target.usage);
    target.is_well().await;
    target.registrar.stop().await;
}

pub async fn storm_of_get_info_from_64_connections() {
    let node = Node::new();
    let _driver = node.driver();
    let mut target = Target::start(node, &[]).await;
    let mut kubelets = Vec::new();
    for _ in 0..64 {
        kubelets.push(Kubelet::dial(&target.socket).await);
    }
    let mut calls = tokio::task::JoinSet::new();
    for kubelet in kubelets {
        calls.spawn(async move {
            for _ in 0..200 {
                if kubelet.try_get_info().await.is_err() {
                    return 0;
                }
            }
            1
        });
    }
    registering(&target.socket).await;
    let mut served = 0;
    while let Some(call) = calls.join_next().await {
        served += call.unwrap();
    }
    // Whoever comes beyond the limit takes the place of the oldest: the registration, and its repetitions.
    assert!(served >= 56, "{served} of 64 were served to their end");
    assert_memory_is_bounded(target.usage);
    target.is_well().await;
    target.registrar.stop().await;
}

pub async fn failing_driver_is_not_hammered() {
    let node = Node::new();
    let mut behaviour = Behaviour::named(DRIVER);
    behaviour.plugin_info = Fault::Fails {
        code: Code::Unavailable,
        message: "starting".to_owned(),
        times: 1000,
    };
    let driver = node.driver_with(behaviour);
    // Without inotify it looks at the directories every second, and others are busy in the driver's.
    let shell = "exec unshare --user --map-root-user sh -c \
                 'echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"' sh \"$@\"";
    let polling = registrar_through(&node, shell, &[]);
    let watching = node.registrar(NOTHING);
    let file = node.csi_socket().with_file_name("file");
    let storm = Storm::of(move |_| {
        fs::write(&file, "").unwrap();
        fs::remove_file(&file).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    });
    tokio::time::sleep(Duration::from_secs(8)).await;
    drop(storm);
    // Each after 0.1 s, then twice that, and so on: seven times in 8 s.
    let calls = driver.calls().borrow().plugin_info;
    assert!(calls <= 2 * 8, "{calls} calls in 8 s");
    polling.stop().await;
    watching.stop().await;
}

pub async fn refused_while_the_directory_is_full() {
    let node = Node::new();
    let _driver = node.driver();
    let registry = node.registry();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "nr_inodes=3", "none"])
        .arg(&registry)
        .status()
        .unwrap();
    assert!(mounted.success(), "mount: {mounted}");
    let registrar = node.registrar(["--registration-failure-policy=retry"]);
    let socket = node.published_as(DRIVER).await;
    answering(&socket, DEADLINE).await;
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    fs::write(registry.join("last"), "").unwrap();
    kubelet.notify(Err("boom")).await;
    let refused = identity(&socket);
    complaint(&registrar, DEADLINE, &["no space left"]).await;
    assert_eq!(identity(&socket), refused, "the old socket is gone too");
    fs::remove_file(registry.join("last")).unwrap();
    until("a new attempt", || identity(&socket) != refused).await;
    Kubelet::register(&socket).await;
    registrar.stop().await;
    assert!(
        Command::new("umount")
            .arg(&registry)
            .status()
            .unwrap()
            .success()
    );
}

pub async fn socket_that_cannot_be_removed() {
    let node = Node::new();
    let _driver = node.driver();
    let registry = node.registry();
    let mount = |arguments: &[&str]| {
        let status = Command::new("mount")
            .args(arguments)
            .arg(&registry)
            .status();
        assert!(status.unwrap().success());
    };
    mount(&["-t", "tmpfs", "none"]);
    let registrar = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    answering(&socket, DEADLINE).await;
    mount(&["-o", "remount,ro"]);
    registrar.signal(Signal::SIGTERM);
    let log = failed(registrar, DEADLINE).await;
    let last = complaints(&log).last().copied().unwrap_or_default();
    assert!(last.contains(&socket.display().to_string()), "{last}");
    assert!(
        Command::new("umount")
            .arg(&registry)
            .status()
            .unwrap()
            .success()
    );
}
