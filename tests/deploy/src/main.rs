//! Checks what `deploy/` says against Kubernetes' types, and against the registrar itself: a manifest or a dashboard that is
//! wrong shows nowhere until somebody applies it.
//!
//!     deploy-checks manifests REGISTRAR FILE...
//!     deploy-checks queries REGISTRAR DASHBOARD RULES DASHBOARD-RULES
//!
//! `manifests` reads rendered manifests. `queries` reads the dashboard and the rules, and writes the dashboard's queries as
//! recording rules, for Prometheus' own checker.

mod manifests;
mod pod;
mod queries;
mod scrape;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: deploy-checks manifests REGISTRAR FILE... | queries REGISTRAR DASHBOARD RULES DASHBOARD-RULES";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let problems = match arguments.as_slice() {
        ["manifests", registrar, files @ ..] if !files.is_empty() => {
            manifests::check(Path::new(registrar), files)
        }
        ["queries", registrar, dashboard, rules, out] => {
            queries::check(Path::new(registrar), dashboard, rules, out)
        }
        _ => Err(USAGE.to_owned()),
    };
    match problems {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in problems {
                eprintln!("{problem}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("deploy-checks: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads a file, and names it if that fails.
fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}
