//! The kubelet's side of plugin registration as a command.

use std::process::ExitCode;

fn main() -> ExitCode {
    csi_node_driver_registrar::manager::cli::main(std::env::args_os()).into()
}
