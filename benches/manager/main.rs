//! What registering many plugins costs: time, CPU time and peak memory of the plugin manager, and the time until it notices
//! that a thousand of them are gone. With the path of the kubelet's own plugin manager (`tests/interop/kubelet`, v1.37), the
//! same for that.
//!
//!     cargo bench --bench manager
//!     cargo bench --bench manager -- path/to/v1.37
//!
//! Every row has processes of its own: the subject, and one that serves all plugins. Both are this program under another role.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

mod limits;
mod measure;
mod plugins;
mod process;
mod subject;

use measure::{Figures, Row, measure};
use subject::Handler;

/// What a row may take in all.
const LIMIT: Duration = Duration::from_mins(5);

/// How much more a plugin may cost among ten times as many, with a handler that does nothing. What is counted in hundredths of a
/// second, beside others, is not exact.
const GROWTH: f64 = 2.0;

/// How much later the others may be registered if one plugin hangs.
const DELAY: Duration = Duration::from_secs(1);

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["plugins", directory, count, hung] => plugins::serve(Path::new(directory), count, hung),
        ["subject", directory, handler, removals] => {
            subject::run(Path::new(directory), handler, removals)
        }
        words => {
            // Cargo's own flag comes with every bench.
            let mut paths = words.iter().filter(|word| !word.starts_with("--"));
            table(paths.next().map(Path::new))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("benches/manager: {error}");
            ExitCode::FAILURE
        }
    }
}

fn table(kubelet: Option<&Path>) -> Result<(), Failure> {
    limits::raise()?;
    let ours = |plugins, handler| Row {
        plugins,
        handler,
        hung: 0,
        kubelet: None,
    };
    println!("{}", Figures::HEADING);
    let thousand = measure(&ours(1_000, Handler::Recording))?;
    let ten_thousand = measure(&ours(10_000, Handler::Recording))?;
    let one_hangs = measure(&Row {
        hung: 1,
        ..ours(1_000, Handler::Recording)
    })?;
    for plugins in [100, 1_000, 2_500] {
        measure(&ours(plugins, Handler::Csi))?;
    }
    match kubelet {
        Some(_) => {
            for plugins in [100, 1_000] {
                measure(&Row {
                    kubelet,
                    ..ours(plugins, Handler::Csi)
                })?;
            }
        }
        None => println!("\nThe kubelet's own: not measured, its program was not named."),
    }
    judge(&thousand, &ten_thousand, &one_hangs)
}

/// What has to hold on any machine.
fn judge(thousand: &Figures, ten_thousand: &Figures, one_hangs: &Figures) -> Result<(), Failure> {
    let growth = ten_thousand.cpu_each() / thousand.cpu_each();
    let delay = one_hangs.registered.saturating_sub(thousand.registered);
    println!(
        "\nA plugin among 10,000 costs {growth:.2} times one among 1,000. One plugin that hangs delays the others by {:.2} s.",
        delay.as_secs_f64()
    );
    if growth > GROWTH {
        return Err(format!(
            "the cost of a plugin grows with their number: more than {GROWTH} times"
        )
        .into());
    }
    if delay > DELAY {
        return Err("one plugin that hangs delays the others".into());
    }
    Ok(())
}
