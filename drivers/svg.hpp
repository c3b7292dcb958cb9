#ifndef K3_DRIVERS_SVG_HPP
#define K3_DRIVERS_SVG_HPP
// The few shapes charts are made of. Dark on white, whatever the page around it is.
#include <cstdio>
#include <string>

namespace k3::drivers {

class Svg {
  public:
    void line(double x1, double y1, double x2, double y2, const char* style) {
        add("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style);
    }
    void box(double x, double y, double width, double height, const char* colour) {
        add("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, width, height, colour);
    }
    void dot(double x, double y, const char* colour) {
        add("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, y, colour);
    }
    void text(double x, double y, const char* anchor, const std::string& words, int size = 12) {
        add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\">", x, y, anchor, size);
        for (const char c : words)
            body_ += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
        body_ += "</text>\n";
    }
    std::string finish(double width, double height) const {
        char head[256];
        std::snprintf(head, sizeof head,
                      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                      "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" fill=\"#222\">\n",
                      width, height, width, height);
        return std::string(head) + "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" + body_ + "</svg>\n";
    }

  private:
    template <class... T>
    void add(const char* form, T... values) {
        char piece[512];
        std::snprintf(piece, sizeof piece, form, values...);
        body_ += piece;
    }
    std::string body_{};
};

}  // namespace k3::drivers
#endif
