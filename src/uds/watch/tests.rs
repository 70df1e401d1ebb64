use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use super::*;

async fn woken(watcher: &mut Watcher) -> bool {
    tokio::time::timeout(Duration::from_secs(5), watcher.changed())
        .await
        .is_ok()
}

fn watching(dir: &Path) -> Watcher {
    Watcher::new([dir.to_owned()])
}

#[tokio::test]
async fn wakes_for_a_name_that_appears_and_one_that_goes() {
    let dir = tempfile::tempdir().unwrap();
    let mut watcher = watching(dir.path());
    fs::write(dir.path().join("a"), "").unwrap();
    assert!(woken(&mut watcher).await);
    fs::remove_file(dir.path().join("a")).unwrap();
    assert!(woken(&mut watcher).await);
}

#[tokio::test(start_paused = true)]
async fn stays_asleep_while_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "").unwrap();
    let mut watcher = watching(dir.path());
    fs::write(dir.path().join("a"), "changed").unwrap();
    let day = Duration::from_hours(24);
    assert!(tokio::time::timeout(day, watcher.changed()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn asks_for_a_look_every_second_while_the_directory_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let mut watcher = watching(&missing);
    let start = tokio::time::Instant::now();
    for _ in 0..10 {
        watcher.changed().await;
    }
    assert_eq!(start.elapsed().as_secs(), 10);

    fs::create_dir(&missing).unwrap();
    watcher.changed().await;
    let day = Duration::from_hours(24);
    assert!(tokio::time::timeout(day, watcher.changed()).await.is_err());
}

#[tokio::test]
async fn follows_the_path_when_the_directory_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    let mut watcher = watching(&place);
    fs::rename(&place, dir.path().join("aside")).unwrap();
    fs::create_dir(&place).unwrap();
    while watcher.directories[0].watched.as_ref().map(|(_, id)| *id)
        != Some(FileId::from(&fs::metadata(&place).unwrap()))
    {
        assert!(woken(&mut watcher).await);
    }
    // The old directory's pending events are read; then only the new one wakes.
    while tokio::time::timeout(Duration::from_millis(50), watcher.changed())
        .await
        .is_ok()
    {}
    fs::write(place.join("a"), "").unwrap();
    assert!(woken(&mut watcher).await);
}

#[tokio::test]
async fn watches_a_directory_that_was_removed_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    let mut watcher = watching(&place);
    fs::remove_dir(&place).unwrap();
    fs::create_dir(&place).unwrap();
    // DELETE_SELF and IGNORED of the first one.
    while tokio::time::timeout(Duration::from_millis(50), watcher.changed())
        .await
        .is_ok()
    {}
    fs::write(place.join("a"), "").unwrap();
    assert!(woken(&mut watcher).await);
}

#[tokio::test]
async fn a_directory_that_outlives_its_removal_is_not_taken_for_the_one_at_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    let mut watcher = watching(&place);
    let _open = UnixListener::bind(place.join("a")).unwrap();
    assert!(woken(&mut watcher).await);
    fs::remove_file(place.join("a")).unwrap();
    assert!(woken(&mut watcher).await);
    fs::remove_dir(&place).unwrap();
    fs::create_dir(&place).unwrap();
    assert!(woken(&mut watcher).await);
    fs::write(place.join("b"), "").unwrap();
    assert!(woken(&mut watcher).await);
}

#[tokio::test(start_paused = true)]
async fn a_poll_comes_however_often_the_wait_is_called_off() {
    let dir = tempfile::tempdir().unwrap();
    let mut watcher = watching(&dir.path().join("missing"));
    let often = Duration::from_millis(400);
    let mut woken = Vec::new();
    for _ in 0..6 {
        woken.push(tokio::time::timeout(often, watcher.changed()).await.is_ok());
    }
    assert_eq!(woken, [false, false, true, false, false, true]);
}
