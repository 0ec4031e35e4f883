//! The example over series ships data: what is committed must be what its generator makes.

#[allow(dead_code, reason = "the example's `main` is not called here")]
#[path = "../examples/make_series.rs"]
mod make_series;

#[test]
fn the_committed_example_is_what_its_generator_makes() {
    let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/series");
    for (path, made) in make_series::files() {
        let committed = fs_err::read_to_string(folder.join(path)).expect("the example is committed");
        let same = committed.lines().zip(made.lines()).take_while(|(a, b)| a == b).count();
        let (line, run) = (same + 1, "cargo run -p plimsoll --example make_series");
        assert!(committed == made, "`{path}` differs from line {line}: run `{run}`");
    }
}
