//! Where the program is loaded. A fault in its code maps the sixteen pages around it, counted in addresses: at a multiple of 64 KiB
//! they are the same pages of the file in every start, and what a plan measures of itself is the same. Without, two starts lay
//! 1.1 MiB apart.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    if of("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,max-page-size=65536");
    }
}
