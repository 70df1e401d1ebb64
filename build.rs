//! Compiles the protos with protox, so that a machine with only a Rust toolchain builds this crate.

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
    Ok(())
}
