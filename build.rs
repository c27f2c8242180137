//! Puts the kernel's files into the binary: every file of `sandbox-bootstrap`, by its relative path.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let manifest = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let root = Path::new(&manifest).join("sandbox-bootstrap");
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
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(Path::new(&out).join("kernel_files.rs"), code)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "__pycache__" && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "py") || name == "matplotlibrc" {
            files.push(path);
        }
    }
    Ok(())
}
