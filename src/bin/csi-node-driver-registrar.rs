//! The node-driver-registrar sidecar, also as `livenessprobe`, `probe` and `cleanup`.

use std::process::ExitCode;

fn main() -> ExitCode {
    csi_node_driver_registrar::command::main(std::env::args_os())
}
