use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

const NAME: &str = "driver.example.com";

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn publishes_one_listening_socket_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (_listener, socket) = SocketFile::publish(dir.path(), NAME).unwrap();
    assert_eq!(names_in(dir.path()), ["driver.example.com-reg.sock"]);
    assert_eq!(mode_of(socket.path()), 0o700);
    UnixStream::connect(socket.path()).unwrap();
    assert_eq!(socket.occupant(), Occupant::Ours);
}

#[test]
fn replaces_a_living_socket_and_leaves_the_successor_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (_first_listener, first) = SocketFile::publish(dir.path(), NAME).unwrap();
    let (_second_listener, second) = SocketFile::publish(dir.path(), NAME).unwrap();
    assert_eq!(first.occupant(), Occupant::AnotherSocket);
    assert!(!first.withdraw().unwrap());
    assert_eq!(second.occupant(), Occupant::Ours);
    assert!(second.withdraw().unwrap());
    assert!(names_in(dir.path()).is_empty());
}

#[test]
fn a_successor_with_the_same_inode_number_is_another_socket() {
    let dir = tempfile::tempdir().unwrap();
    // Closed at once, so the number is free: some file systems hand it to the very next file.
    let (_, first) = SocketFile::publish(dir.path(), NAME).unwrap();
    fs::remove_file(first.path()).unwrap();
    let (_listener, _second) = SocketFile::publish(dir.path(), NAME).unwrap();
    assert_eq!(first.occupant(), Occupant::AnotherSocket);
}

#[test]
fn what_is_no_socket_is_named_and_left_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("driver.example.com-reg.sock");
    let refusal = || match SocketFile::publish(dir.path(), NAME) {
        Err(PublishError::NotASocket { what, .. }) => what,
        other => panic!("published over something: {other:?}"),
    };

    fs::write(&path, "precious").unwrap();
    assert_eq!(refusal(), "a regular file");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert_eq!(refusal(), "a directory");
    fs::remove_dir(&path).unwrap();

    symlink("/nowhere", &path).unwrap();
    assert_eq!(refusal(), "a symbolic link");
    assert_eq!(names_in(dir.path()), ["driver.example.com-reg.sock"]);
}

#[test]
fn a_path_over_the_limit_names_length_and_limit() {
    let dir = tempfile::tempdir().unwrap();
    let fixed = dir.path().join("-reg.sock").as_os_str().len();
    let longest = "x".repeat(MAX_SOCKET_PATH - fixed);
    SocketFile::publish(dir.path(), &longest).unwrap();
    let error = SocketFile::publish(dir.path(), &format!("{longest}x")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is 108 bytes long, the limit is 107"),
        "{error}"
    );
}

#[test]
fn a_missing_directory_is_an_error_and_stays_missing() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = SocketFile::publish(&missing, NAME).unwrap_err();
    assert!(error.to_string().contains("plugins_registry"), "{error}");
    assert!(!missing.exists());
}

#[test]
fn removes_only_old_dead_temporary_sockets_of_this_driver() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, alive: bool, is_old: bool| {
        let path = dir.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        if is_old {
            let day_two = nix::sys::time::TimeVal::new(86_400, 0);
            nix::sys::stat::utimes(&path, &day_two, &day_two).unwrap();
        }
        alive.then_some(listener)
    };
    let _alive = make(".driver.example.com.alive00", true, true);
    make(".driver.example.com.young00", false, false);
    make(".driver.example.com.dead000", false, true);
    make(".another.example.com.dead00", false, true);
    make(".driver.example.com.x.dead000", false, true);
    fs::write(dir.path().join(".driver.example.com.file000"), "").unwrap();

    SocketFile::publish(dir.path(), NAME).unwrap();
    let names = names_in(dir.path());
    assert!(
        !names.contains(&".driver.example.com.dead000".to_owned()),
        "{names:?}"
    );
    assert_eq!(names.len(), 6, "{names:?}");
}

#[test]
fn withdrawing_twice_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let (_listener, socket) = SocketFile::publish(dir.path(), NAME).unwrap();
    assert!(socket.withdraw().unwrap());
    assert!(!socket.withdraw().unwrap());
}

proptest! {
    #[test]
    fn temporary_names_are_as_long_as_final_ones_and_recognised(name in "[a-z0-9][a-z0-9.-]{0,60}") {
        let temporary = temporary_name(&name, 0);
        prop_assert_eq!(temporary.len(), format!("{name}-reg.sock").len());
        prop_assert!(is_temporary_name_of(&name, &temporary));
        let longer = format!("{name}.x");
        prop_assert!(!is_temporary_name_of(&longer, &temporary));
        prop_assert!(!is_temporary_name_of(&name, &temporary_name(&longer, 0)));
    }
}
