"""What a test asks of an HTML page: a parser that knows which elements are open, and what stands in them."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img"}


class Parsed(HTMLParser):
    """A page, element by element; a tag that closes another one than the last opened is an error.

    Attributes:
        elements: (tag, attributes) of all elements, in order.
        text: All that a reader sees.
    """

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self._open, self._said = [], [], []
        self.feed(page)
        self.close()
        assert self._open == []
        self.text = " ".join(" ".join(self._said).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self._said.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]
