//! `file_reader`: reads a text file of the workspace.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::read;
use crate::protocol::frames::ToolFailure;
use crate::protocol::limits::TOOL_OUTPUT_BYTES;
use crate::protocol::problem::Code;
use crate::protocol::tool_names::FILE_TOOL;
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput, failure};
use crate::tools::port::{FileRead, as_failure};

const MIB: u64 = 1024 * 1024;
/// Less than the limit of a tool's output, with room for the heading.
const MAX_SIZE_MB: u64 = (TOOL_OUTPUT_BYTES as u64) / MIB - 1;

pub struct FileReader;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The file, relative to the workspace.
    #[schemars(extend("examples" = ["data/input.txt", "logs/output.log"]))]
    file_path: String,
    /// Its encoding: utf-8, ascii, latin-1 or utf-16.
    #[serde(default = "utf_8")]
    encoding: String,
    /// Of a larger file only the size and the number of lines are told.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = MAX_SIZE_MB))]
    max_size_mb: u64,
}

fn utf_8() -> String {
    "utf-8".into()
}

fn one() -> u64 {
    1
}

impl Tool for FileReader {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some(
                "读取工作目录中的文本文件并返回内容。过大的文件只返回大小和行数。路径相对于工作目录，不能离开工作目录。".into(),
            ),
            read_only: true,
            ..Definition::new(
                FILE_TOOL,
                "Reads a text file of the workspace and returns its contents; of a file that is too large, its size \
                 and number of lines. Paths are relative to the workspace and cannot leave it.",
                parameters_of::<Arguments>(),
            )
        }
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let Arguments { file_path, encoding, max_size_mb } = read(arguments)?;
            let printable_path = file_path.escape_debug().to_string();
            let most = max_size_mb.min(MAX_SIZE_MB) * MIB;
            let found = context.port()?.read_file(file_path, most).await.map_err(|problem| {
                if problem.code == Code::NoSuchFile {
                    return failure(
                        "failed",
                        format!("the file `{printable_path}` does not exist in the workspace"),
                    );
                }
                as_failure(problem)
            })?;
            match found {
                FileRead::Whole(bytes) => {
                    let text = decoded(&bytes, &encoding)?;
                    Ok(ToolOutput::Text(format!("File contents ({} chars):\n{text}", text.chars().count())))
                }
                FileRead::TooLarge { bytes, lines } => Ok(ToolOutput::Text(format!(
                    "The file `{printable_path}` is larger than {max_size_mb} MB. It has {lines} lines and {bytes} bytes."
                ))),
            }
        })
    }
}

fn decoded(bytes: &[u8], encoding: &str) -> Result<String, ToolFailure> {
    let name: String =
        encoding.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    let text = match name.as_str() {
        "utf8" | "utf8sig" => {
            let without_mark = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            String::from_utf8(without_mark.to_vec()).ok()
        }
        "ascii" | "usascii" => bytes.is_ascii().then(|| String::from_utf8_lossy(bytes).into_owned()),
        "latin1" | "iso88591" => Some(bytes.iter().copied().map(char::from).collect()),
        "utf16" | "utf16le" => utf_16(bytes, u16::from_le_bytes),
        "utf16be" => utf_16(bytes, u16::from_be_bytes),
        _ => {
            return Err(failure(
                "bad_arguments",
                format!(
                    "`encoding`: `{}` is not known here; take utf-8, ascii, latin-1 or utf-16, or read the file with Python's open()",
                    encoding.escape_debug()
                ),
            ));
        }
    };
    text.ok_or_else(|| {
        failure(
            "failed",
            format!("the file is not {name}; try another encoding, such as utf-8, utf-16 or latin-1"),
        )
    })
}

/// Combines two bytes into a number.
type Pair = fn([u8; 2]) -> u16;

/// Decodes UTF-16. A byte order mark at the start determines the byte order; without one, `unmarked` does.
fn utf_16(bytes: &[u8], unmarked: Pair) -> Option<String> {
    let (bytes, pair): (&[u8], Pair) = match bytes {
        [0xff, 0xfe, rest @ ..] => (rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => (rest, u16::from_be_bytes),
        _ => (bytes, unmarked),
    };
    let (pairs, []) = bytes.as_chunks::<2>() else { return None };
    let units: Vec<u16> = pairs.iter().map(|each| pair(*each)).collect();
    String::from_utf16(&units).ok()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn text_is_decoded_as_asked() {
        assert_eq!(decoded("héllo 总".as_bytes(), "utf-8").unwrap(), "héllo 总");
        assert_eq!(decoded(b"\xef\xbb\xbfa", "UTF8").unwrap(), "a");
        assert_eq!(decoded(b"h\xe9", "latin-1").unwrap(), "hé");
        assert_eq!(decoded(b"\xff\xfea\0", "utf-16").unwrap(), "a");
        assert_eq!(decoded(b"\xfe\xff\0a", "utf-16").unwrap(), "a");
        assert_eq!(decoded(b"\0a", "utf-16-be").unwrap(), "a");
    }

    #[test]
    fn what_does_not_decode_suggests_another_encoding() {
        for (bytes, encoding) in [(&b"h\xe9"[..], "utf-8"), (b"h\xe9", "ascii"), (b"abc", "utf-16")] {
            let failure = decoded(bytes, encoding).unwrap_err();
            assert!(failure.message.contains("try another encoding"), "{failure:?}");
        }
        assert_eq!(decoded(b"a", "gbk").unwrap_err().code, "bad_arguments");
    }
}
