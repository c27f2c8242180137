//! `file_reader`: reads a text file of the workspace.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::Encoding;
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
    /// Its encoding, such as utf-8, utf-16, gb18030, big5, shift-jis or latin-1. It is detected if it is not given.
    #[serde(default)]
    encoding: Option<String>,
    /// The largest file whose text is returned; for a larger one, the answer is its size and its number of lines.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = MAX_SIZE_MB))]
    max_size_mb: u64,
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
                    let (text, name) = match encoding {
                        Some(encoding) => (decoded(&bytes, &encoding)?, encoding),
                        None => detected(&bytes)?,
                    };
                    let chars = text.chars().count();
                    // UTF-8 is what a reader expects.
                    let named =
                        if is_utf_8(&name) { String::new() } else { format!(", {}", name.escape_debug()) };
                    Ok(ToolOutput::Text(format!("File contents ({chars} chars{named}):\n{text}")))
                }
                FileRead::TooLarge { bytes, lines } => Ok(ToolOutput::Text(format!(
                    "The file `{printable_path}` is larger than {max_size_mb} MB. It has {lines} lines and {bytes} bytes."
                ))),
            }
        })
    }
}

fn is_utf_8(encoding: &str) -> bool {
    matches!(plain_name(encoding).as_str(), "utf8" | "utf8sig")
}

fn plain_name(encoding: &str) -> String {
    encoding.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

fn decoded(bytes: &[u8], encoding: &str) -> Result<String, ToolFailure> {
    let name = plain_name(encoding);
    let text = match name.as_str() {
        "ascii" | "usascii" => bytes.is_ascii().then(|| String::from_utf8_lossy(bytes).into_owned()),
        "latin1" | "iso88591" => Some(bytes.iter().copied().map(char::from).collect()),
        "utf16" | "utf16le" => utf_16(bytes, u16::from_le_bytes),
        "utf16be" => utf_16(bytes, u16::from_be_bytes),
        _ => {
            let label = if is_utf_8(encoding) { "utf-8" } else { encoding };
            let Some(known) = Encoding::for_label(label.as_bytes()) else {
                return Err(failure(
                    "bad_arguments",
                    format!(
                        "`encoding`: `{}` is not known here; leave it out to have it detected, or read the file with Python's open()",
                        encoding.escape_debug()
                    ),
                ));
            };
            let (text, has_errors) = known.decode_with_bom_removal(bytes);
            (!has_errors).then(|| text.into_owned())
        }
    };
    text.ok_or_else(|| {
        failure(
            "failed",
            format!("the file is not {name}; try another encoding, or leave it out to have it detected"),
        )
    })
}

/// The text of a file whose encoding the call does not name, and the name of the encoding that was found.
fn detected(bytes: &[u8]) -> Result<(String, String), ToolFailure> {
    if let Ok(text) = decoded(bytes, "utf-8") {
        return Ok((text, "utf-8".to_owned()));
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Ok((decoded(bytes, "utf-16")?, "utf-16".to_owned()));
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(bytes, true);
    let found = detector.guess(None, Utf8Detection::Deny);
    let (text, has_errors) = found.decode_without_bom_handling(bytes);
    if has_errors || bytes.contains(&0) {
        return Err(failure(
            "failed",
            "the file is no text in an encoding that can be detected; name its encoding, or read it with Python's open()",
        ));
    }
    Ok((text.into_owned(), found.name().to_owned()))
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
    use super::{decoded, detected};

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
        for (bytes, encoding) in
            [(&b"h\xe9"[..], "utf-8"), (b"h\xe9", "ascii"), (b"abc", "utf-16"), (b"\xff\xff", "gbk")]
        {
            let failure = decoded(bytes, encoding).unwrap_err();
            assert!(failure.message.contains("try another encoding"), "{failure:?}");
        }
        assert_eq!(decoded(b"a", "klingon").unwrap_err().code, "bad_arguments");
    }

    #[test]
    fn encodings_of_east_asia_are_detected() {
        let chinese = "数据分析报告：第一季度的销售额比去年同期增长了百分之十二，主要来自华东地区。";
        let traditional = "資料分析報告：第一季的銷售額比去年同期成長了百分之十二，主要來自北部地區。";
        let japanese = "データ分析の報告：第一四半期の売上は前年同期より十二パーセント増えました。";
        for (text, encoding, name) in [
            (chinese, encoding_rs::GBK, "GBK"),
            (chinese, encoding_rs::GB18030, "GBK"),
            (traditional, encoding_rs::BIG5, "Big5"),
            (japanese, encoding_rs::SHIFT_JIS, "Shift_JIS"),
            (japanese, encoding_rs::EUC_JP, "EUC-JP"),
        ] {
            let (bytes, _, unmappable) = encoding.encode(text);
            assert!(!unmappable);
            assert_eq!(detected(&bytes).unwrap(), (text.to_owned(), name.to_owned()));
            assert_eq!(decoded(&bytes, encoding.name()).unwrap(), text);
        }
        assert_eq!(detected(b"\xff\xfea\0").unwrap(), ("a".to_owned(), "utf-16".to_owned()));
        assert_eq!(detected("é".as_bytes()).unwrap().1, "utf-8");
        assert!(detected(b"\x7fELF\x02\x01\x00\xff\xfe").is_err());
    }
}
