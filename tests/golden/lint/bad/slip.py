def main()  # expect: E627
    pass
