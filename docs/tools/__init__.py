"""What builds the site, besides MkDocs. Nothing of it is part of prefeed.

``hooks``      pages from files outside of ``docs/``: links, navigation, generated pages
``reference``  the pages of the API, and what they lack
``drawing``    drawings from text
"""
