//! Runs rows side by side, each on a thread and under a deadline of its own, and prints how they fared.

use std::collections::HashMap;
use std::panic;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::support;

/// How many rows that work the machine run at once. The ones that only wait all run beside them.
const WORKERS: usize = 2;

/// What is added to a row's limit before the runner stops waiting for its thread.
const GRACE: Duration = Duration::from_secs(5);

/// A row's test.
pub type Test = fn() -> Pin<Box<dyn Future<Output = ()>>>;

/// One row of the table.
#[derive(Clone, Copy)]
pub struct Row {
    /// `f01_...`; what filters look at.
    pub name: &'static str,
    /// The fault, for people.
    pub fault: &'static str,
    pub pace: Pace,
    pub test: Test,
}

/// How a row spends its time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// It has work to do, or measures: a few at a time, a minute at most.
    Works,
    /// It waits for something that takes so many seconds: all of them at once.
    Waits(u64),
}

impl Row {
    fn limit(&self) -> Duration {
        match self.pace {
            Pace::Works => Duration::from_mins(1),
            Pace::Waits(seconds) => Duration::from_secs(seconds),
        }
    }
}

struct Outcome {
    row: Row,
    took: Duration,
    failure: Option<String>,
}

/// Runs the rows that a filter names, or all, and prints the table.
pub fn run(rows: Vec<Row>, filters: &[&str]) -> ExitCode {
    let wanted =
        |row: &Row| filters.is_empty() || filters.iter().any(|part| row.name.contains(part));
    let rows: Vec<_> = rows.into_iter().filter(wanted).collect();
    println!(
        "{} rows on {}",
        rows.len(),
        support::registrar_binary().display()
    );
    let messages = catch_messages();
    let places = Arc::new(Places::default());
    let runs: Vec<_> = rows
        .into_iter()
        .map(|row| {
            let (places, messages) = (places.clone(), messages.clone());
            thread::spawn(move || {
                let _place = (row.pace == Pace::Works).then(|| places.take());
                one(row, &messages)
            })
        })
        .collect();
    let outcomes: Vec<_> = runs
        .into_iter()
        .map(|run| run.join().expect("rows are caught"))
        .collect();
    print(&outcomes)
}

/// Runs one row, however it ends.
fn one(row: Row, messages: &Messages) -> Outcome {
    let begin = Instant::now();
    let (ended, end) = std::sync::mpsc::channel();
    let thread = thread::Builder::new()
        .name(row.name.to_owned())
        .spawn(move || {
            let result = panic::catch_unwind(|| {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap()
                    .block_on(async {
                        support::within(row.limit(), "the row to end", (row.test)()).await;
                    });
            });
            let _ = ended.send(result.is_ok());
        });
    let passed = thread.is_ok() && end.recv_timeout(row.limit() + GRACE).unwrap_or(false);
    let failure = (!passed).then(|| {
        let mut messages = messages.lock().unwrap_or_else(PoisonError::into_inner);
        let message = messages.remove(row.name);
        message.unwrap_or_else(|| format!("did not end within {:?}", row.limit() + GRACE))
    });
    let took = begin.elapsed();
    let word = if passed { "pass" } else { "FAIL" };
    println!("{word} {} ({:.1} s)", row.name, took.as_secs_f64());
    Outcome { row, took, failure }
}

/// Places for rows that work.
#[derive(Default)]
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

struct Place<'a>(&'a Places);

impl Places {
    fn take(&self) -> Place<'_> {
        let taken = self.taken.lock().unwrap();
        let mut taken = self
            .freed
            .wait_while(taken, |taken| *taken >= WORKERS)
            .unwrap();
        *taken += 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

/// The first panic of each row's thread.
type Messages = Arc<Mutex<HashMap<String, String>>>;

fn catch_messages() -> Messages {
    let messages = Messages::default();
    let caught = messages.clone();
    panic::set_hook(Box::new(move |info| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("a thread without a name");
        let text = info.payload_as_str().unwrap_or("a panic without a text");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        eprintln!("--- {name} at {place}\n{text}");
        let first_line = text.lines().next().unwrap_or_default().to_owned();
        caught
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(name.to_owned())
            .or_insert(first_line);
    }));
    messages
}

fn print(outcomes: &[Outcome]) -> ExitCode {
    println!("\n| Row | Fault | Result | Seconds |\n|---|---|---|---|");
    for Outcome { row, took, failure } in outcomes {
        let id = match row.name.split_once('_') {
            Some((id, _)) if id[1..].parse::<u8>().is_ok() => id.to_uppercase(),
            _ => "-".to_owned(),
        };
        let result = match failure {
            None => "pass".to_owned(),
            Some(reason) => format!("FAIL: {}", reason.replace('|', "/")),
        };
        println!(
            "| {id} | {} | {result} | {:.1} |",
            row.fault,
            took.as_secs_f64()
        );
    }
    let passed = outcomes.iter().filter(|outcome| outcome.failure.is_none());
    let passed = passed.count();
    println!("\n{passed} of {} rows passed", outcomes.len());
    if passed == outcomes.len() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
