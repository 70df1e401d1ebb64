//! Pipes instead of standard error.

use std::io::{PipeReader, PipeWriter, Read, pipe};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;

/// A write that waits never ends.
const DEADLINE: Duration = Duration::from_secs(20);

fn lossy() -> (PipeReader, LossyWriter<PipeWriter>) {
    let (reader, writer) = pipe().expect("a pipe");
    (reader, LossyWriter::new(writer))
}

/// Runs `work` where it can be given up.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    result
        .recv_timeout(DEADLINE)
        .expect("a writer that does not wait")
}

fn read_exactly(reader: &mut PipeReader, length: usize) -> String {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).expect("what was written");
    String::from_utf8(bytes).expect("UTF-8")
}

fn rest(mut reader: PipeReader, output: LossyWriter<PipeWriter>) -> String {
    drop(output);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("what was written");
    text
}

#[test]
fn lines_arrive_whole_and_in_order() {
    let (reader, output) = lossy();
    let long = format!("{}\n", "x".repeat(3 * PIECE));
    for line in ["one\n", &long, "two\n"] {
        output.write_line(line);
    }
    assert_eq!(rest(reader, output), format!("one\n{long}two\n"));
}

#[test]
fn a_reader_that_does_not_read_costs_lines_only() {
    let (mut reader, output) = lossy();
    let line = format!("{}\n", "y".repeat(99));
    let (output, line) = in_time(move || {
        for _ in 0..10_000 {
            output.write_line(&line);
        }
        (output, line)
    });
    // All that the pipe holds is whole lines.
    assert_eq!(read_exactly(&mut reader, 50 * line.len()), line.repeat(50));
    let text = rest(reader, output);
    assert!(text.len() < 200 * 1024, "{}", text.len());
    assert!(text.lines().all(|text| text.len() == 99));
}

#[test]
fn after_a_line_that_was_cut_the_next_one_starts_afresh() {
    let (mut reader, output) = lossy();
    // Longer than any pipe is by default.
    let long = "z".repeat(4 * 1024 * 1024);
    let output = in_time(move || {
        output.write_line(&long);
        output.write_line("lost\n");
        output
    });
    assert!(
        read_exactly(&mut reader, 8 * PIECE)
            .chars()
            .all(|c| c == 'z')
    );
    output.write_line("next\n");
    output.write_line("last\n");
    let text = rest(reader, output);
    let (cut, rest) = text.split_once('\n').expect("a line break");
    assert!(cut.chars().all(|c| c == 'z'));
    assert_eq!(rest, "next\nlast\n");
}

#[test]
fn a_reader_that_is_gone_costs_lines_only() {
    let (reader, output) = lossy();
    drop(reader);
    for _ in 0..3 {
        output.write_line("lost\n");
    }
}

#[test]
fn the_descriptor_stays_as_it_was() {
    use nix::fcntl::{FcntlArg, fcntl};

    let (_reader, output) = lossy();
    let before = fcntl(output.file.as_fd(), FcntlArg::F_GETFL).expect("flags");
    output.write_line("line\n");
    assert_eq!(
        fcntl(output.file.as_fd(), FcntlArg::F_GETFL).expect("flags"),
        before
    );
}
