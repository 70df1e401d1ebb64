//! Our release binary beside any other registrar's: what each costs, in runs that take turns, as one table.
//!
//! ```sh
//! cargo bench --bench compare -- OURS OTHER... [--livenessprobe OTHER]...
//! ```
//!
//! Every registrar meets the same embedded driver and the same kubelet's client. No root is needed. The exit code is 0 only if
//! ours, the first, keeps within every budget.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "it ends by a panic if a registrar does not do its work, as a test does"
)]
#![allow(
    unreachable_pub,
    reason = "the modules of a benchmark have no users outside it"
)]

mod arguments;
mod idle;
mod liveness;
mod load;
mod machine;
mod rounds;
mod samples;
mod size;
mod start;
mod subject;
#[path = "../../tests/support/mod.rs"]
mod support;
mod table;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;
use crate::subject::Subject;
use crate::table::Table;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let within_budget = runtime.block_on(compare(&arguments));
    if within_budget {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn compare(arguments: &Arguments) -> bool {
    let registrars: Vec<_> = arguments
        .registrars
        .iter()
        .map(|path| Subject::registrar(path))
        .collect();
    let probes: Vec<_> = std::iter::once(Subject::our_livenessprobe(&arguments.registrars[0]))
        .chain(
            arguments
                .livenessprobe
                .iter()
                .map(|path| Subject::livenessprobe(path)),
        )
        .collect();
    println!("{}\n", machine::description());
    let mut registration = Table::new("Registration", &registrars);
    registration.extend(size::rows(&registrars));
    registration.extend(start::rows(&registrars, arguments).await);
    registration.extend(waiting::rows(&registrars, arguments).await);
    registration.extend(load::rows(&registrars, arguments).await);
    registration.extend(idle::rows(&registrars, arguments).await);
    let mut liveness = Table::new("Liveness", &probes);
    liveness.extend(liveness::merged(&registrars[0], arguments).await);
    liveness.extend(liveness::alone(&probes, arguments).await);
    println!("{registration}\n{liveness}\n{}", machine::description());
    registration.is_within_budget() && liveness.is_within_budget()
}
