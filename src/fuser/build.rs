fn main() {
    println!(
        "cargo::rustc-check-cfg=cfg(fuser_mount_impl, values(\"pure-rust\", \"libfuse2\", \"libfuse3\", \"macos-no-mount\"))"
    );
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"experimental\", \"libfuse2\", \"libfuse3\", \"macfuse-4-compat\", \"serializable\"))");
    println!("cargo::rustc-cfg=fuser_mount_impl=\"pure-rust\"");
}
