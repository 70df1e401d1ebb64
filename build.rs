//! Compiles the protos with protox, so that a machine with only a Rust toolchain builds this crate, and leaves out of the image's
//! binary what a program that never unwinds has no use for.

use std::path::Path;
use std::{env, fs, io};

/// Takes the tables for unwinding out of the program, those of the standard library and the C library too: an eighth of it. The
/// compiler's own start files refer to theirs.
const LINKER_SCRIPT: &str = "\
SECTIONS { /DISCARD/ : { *(EXCLUDE_FILE(*crtbegin*.o *crtend*.o) .eh_frame) } } INSERT AFTER .text;
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["csi/v1/csi.proto", "pluginregistration/v1/api.proto"];
    for file in files {
        println!("cargo:rerun-if-changed=proto/{file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::proto::Codec")
        .compile_fds(descriptors)?;
    leave_out_unwind_tables()?;
    Ok(())
}

/// Static release builds abort on a panic (`profile.release`); `-C force-unwind-tables=no` does nothing with `lto = "fat"`.
fn leave_out_unwind_tables() -> io::Result<()> {
    let variable = |name| env::var(name).unwrap_or_default();
    let is_static = variable("CARGO_CFG_TARGET_FEATURE")
        .split(',')
        .any(|feature| feature == "crt-static");
    // A profiler unwinds.
    let unwinds = variable("PROFILE") != "release" || env::var_os("CARGO_FEATURE_PPROF").is_some();
    if !is_static || unwinds {
        return Ok(());
    }
    let script = Path::new(&variable("OUT_DIR")).join("no-unwind-tables.ld");
    fs::write(&script, LINKER_SCRIPT)?;
    for argument in [
        "-Wl,--no-eh-frame-hdr",
        &format!("-Wl,-T,{}", script.display()),
    ] {
        println!("cargo:rustc-link-arg-bin=csi-node-driver-registrar={argument}");
    }
    Ok(())
}
