//! Puts what every sandbox runs into the binary: the Python files of `sandbox-bootstrap` by their relative paths, and the
//! guardian, a static program that is compiled here.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Variables by which the outer build would change the guardian's.
const NOT_HANDED_ON: [&str; 6] = [
    "CARGO_BUILD_TARGET",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
];

fn main() -> io::Result<()> {
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("sandbox-bootstrap");
    let out = PathBuf::from(variable("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut code = String::from(
        "/// Relative path and text of each file.\npub const KERNEL_FILES: &[(&str, &str)] = &[\n",
    );
    for file in files {
        let name = file.strip_prefix(&root).map_err(io::Error::other)?.to_string_lossy().into_owned();
        writeln!(code, "    ({name:?}, include_str!({:?})),", file.display().to_string())
            .map_err(io::Error::other)?;
    }
    code.push_str("];\n");
    let guardian = compile_guardian(&root.join("guardian"), &out)?.display().to_string();
    writeln!(code, "/// The program that is the first process of a sandbox.").map_err(io::Error::other)?;
    writeln!(code, "pub const GUARDIAN: &[u8] = include_bytes!({guardian:?});").map_err(io::Error::other)?;
    fs::write(out.join("kernel_files.rs"), code)
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(io::Error::other)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "__pycache__" && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "py")
            || name == "matplotlibrc"
            || folder.ends_with("shims/bin")
        {
            files.push(path);
        }
    }
    Ok(())
}

/// Compiles the guardian for the daemon's own target, without a C library that an image would have to have.
fn compile_guardian(package: &Path, out: &Path) -> io::Result<PathBuf> {
    let (target, folder) = (variable("TARGET")?, out.join("guardian"));
    let mut command = Command::new(variable("CARGO")?);
    for name in NOT_HANDED_ON {
        command.env_remove(name);
    }
    command.env("RUSTFLAGS", "-C target-feature=+crt-static");
    // With an explicit target the flags are those of the program alone, not of what runs while it is compiled.
    command.args(["build", "--release", "--locked", "--quiet", "--target", &target]);
    command.arg("--manifest-path").arg(package.join("Cargo.toml")).arg("--target-dir").arg(&folder);
    if env::var_os("CARGO_FEATURE_MUTATE").is_some() {
        command.args(["--features", "mutate"]);
    }
    if !command.status()?.success() {
        return Err(io::Error::other("the guardian in `sandbox-bootstrap/guardian` could not be compiled"));
    }
    Ok(folder.join(target).join("release/belljar-guardian"))
}
