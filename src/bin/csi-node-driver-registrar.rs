//! The node-driver-registrar sidecar.

use std::process::ExitCode;

fn main() -> ExitCode {
    csi_node_driver_registrar::registrar::command::main(std::env::args_os())
}
