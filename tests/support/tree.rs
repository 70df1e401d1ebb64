//! What lies below a directory, to show that a process left everything as it was.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Every file below a directory, by its path: mode (with the type), inode, length, and when it was last changed. The last of
/// a directory tells whether anything was made or removed in it meanwhile.
pub type Tree = BTreeMap<PathBuf, (u32, u64, u64, i64, i64)>;

/// Lists everything below `root`, and `root` itself.
pub fn tree(root: &Path) -> Tree {
    let mut found = Tree::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
        }
        found.insert(path, facts(&metadata));
    }
    found
}

fn facts(metadata: &Metadata) -> (u32, u64, u64, i64, i64) {
    (
        metadata.mode(),
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
    )
}
