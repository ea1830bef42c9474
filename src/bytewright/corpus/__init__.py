"""Where text comes from: the storybook, whose entropy is known, downloads, and readers of the usual files.

Nothing here knows what a token is. The parts are imported from their own modules.
"""
