// Goal: lines come as they stand in the file, wherever the pieces end in which
// it is read.
#include "worker/data/line_reader.h"

#include <zlib.h>

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace slackline::line_reader_test {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> LinesOf(const std::string& text) {
  const TempFolder folder;
  auto reader = LineReader::Open(folder.Write("text", text));
  EXPECT_TRUE(reader.ok()) << reader.status();
  std::vector<std::string> lines;
  while (true) {
    absl::string_view line;
    const absl::StatusOr<bool> more = reader->Next(&line);
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok() || !*more) return lines;
    lines.emplace_back(line);
    EXPECT_EQ(reader->line_number(), static_cast<int64_t>(lines.size()));
  }
}

TEST(LineReader, EndsOfLinesAreNoPartOfThem) {
  EXPECT_THAT(LinesOf("a\n\nb c\r\nd"), ElementsAre("a", "", "b c", "d"));
  EXPECT_THAT(LinesOf("a\n"), ElementsAre("a"));
  EXPECT_THAT(LinesOf(""), ElementsAre());
  EXPECT_THAT(LinesOf("\n"), ElementsAre(""));
}

TEST(LineReader, LinesAcrossPiecesAreWhole) {
  constexpr int kPiece = LineReader::kPieceBytes;
  for (const int first : {kPiece - 2, kPiece - 1, kPiece, 3 * kPiece + 7}) {
    const std::string line(first, 'x');
    EXPECT_THAT(LinesOf(line + "\nabc\r\nd\n"), ElementsAre(line, "abc", "d"))
        << first;
    EXPECT_THAT(LinesOf(line), ElementsAre(line)) << first;
  }
}

TEST(LineReader, LineWithoutAnEndIsRefusedBeforeItFillsTheMemory) {
  const TempFolder folder;
  const std::string path = folder.File("text.gz");
  gzFile file = gzopen(path.c_str(), "wb1");
  ASSERT_EQ(gzputs(file, "first\n"), 6);
  const std::string piece(1 << 20, '\0');
  for (size_t written = 0; written <= LineReader::kLineBytesMax;
       written += piece.size())
    ASSERT_GT(gzwrite(file, piece.data(), piece.size()), 0);
  ASSERT_EQ(gzclose(file), Z_OK);
  auto reader = LineReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  absl::string_view line;
  ASSERT_TRUE(*reader->Next(&line));
  const absl::StatusOr<bool> more = reader->Next(&line);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(more.status().message()),
              HasSubstr("text.gz:2: has more than 67108864 bytes in one line"));
}

}  // namespace slackline::line_reader_test
